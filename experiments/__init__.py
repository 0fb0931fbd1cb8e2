"""The science: prompts, sensitivity, InterMit, mitigators, studies. Nothing here imports ray or torch."""
