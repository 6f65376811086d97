"""Files that are whole or absent: opening, decoding, writing, locking."""
