"""`ronde run --checkpoint`: a script is recorded and saved as it runs, and brought back when it runs anew."""
