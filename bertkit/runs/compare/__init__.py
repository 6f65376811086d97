"""Every model on the user's own rows, by the same splits and the same clock."""
