"""Benchmarks of ronde beside plain PyTorch and other libraries."""
