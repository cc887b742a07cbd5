"""What is not of one framework."""
