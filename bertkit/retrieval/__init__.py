"""Search over your documents: passages, their vectors and words, and the index that holds them."""
