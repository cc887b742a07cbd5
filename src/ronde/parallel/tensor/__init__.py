"""Tensor parallelism: matrices cut over ranks, and rules for values between them."""
