"""The science: datasets, prompts, sensitivity, InterMit, mitigators, studies. Nothing here imports Ray or torch."""
