"""What one step of a script computes and keeps, found by running it on tensors without data."""
