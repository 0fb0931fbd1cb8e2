"""What holds a model: TTI and VQA engines, the thin Ray actors around them, and the pictogram models."""
