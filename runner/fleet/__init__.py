"""Replicas of models in Ray actors: started, given batches, replaced when they die."""
