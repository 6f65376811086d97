"""Model folders in and out."""
