"""Compressors: what a message is encoded as, and what of it comes out again. Pure functions of tensors."""
