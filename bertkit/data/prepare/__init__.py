"""From running text to a token store, in bounded memory, with several processes."""
