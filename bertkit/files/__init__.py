"""Files that are complete or absent: opening, decoding, writing, locking."""
