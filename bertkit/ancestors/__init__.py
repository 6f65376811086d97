"""What came before BERT, one self-contained file each."""
