"""Files to batches: numpy until the last line."""
