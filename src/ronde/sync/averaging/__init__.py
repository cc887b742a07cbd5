"""Model averaging protocols: ranks train by themselves and average parameters."""
