"""Search over own documents: passages, their vectors and their words, and the index that holds them."""
