"""Meshes beside the same parallelism by hand."""
