"""The proof: a script recorded in plain python and on N ranks, compared clause by clause of the law."""
