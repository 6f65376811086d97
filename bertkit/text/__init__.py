"""Characters to ids. Nothing here imports torch."""
