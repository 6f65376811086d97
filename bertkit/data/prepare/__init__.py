"""Running text to a token store, in bounded memory, by several processes."""
