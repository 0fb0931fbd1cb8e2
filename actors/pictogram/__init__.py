"""Pictograms: figures whose axes are abstract codes, drawn from a joint distribution that is known exactly."""
