"""Scripts that are run under plans."""
