"""What a training step minimises: summed losses and their counts."""
