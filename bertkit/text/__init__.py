"""From characters to ids. Nothing here imports torch."""
