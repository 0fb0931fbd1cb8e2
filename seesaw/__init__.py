"""Seesaw audits text-to-image models for biases that interact, and mitigates them."""
