"""Optimizer steps and gradients on parameter servers."""
