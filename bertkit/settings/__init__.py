"""Settings of every run, as numbers and words. Nothing here needs torch: the command line reads them all."""
