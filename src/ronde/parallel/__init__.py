"""Distribution of work and state over ranks."""
