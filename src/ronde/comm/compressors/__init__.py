"""Compressors: pure functions from tensors to messages and back."""
