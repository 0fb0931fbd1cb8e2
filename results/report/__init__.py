"""The HTML report: everything that draws, and its templates."""
