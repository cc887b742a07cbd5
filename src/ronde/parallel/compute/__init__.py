"""Computation: precision, recomputation, micro-batches, compilation."""
