"""Shards of parameters, gradients and optimizer state: spec, gathering, update."""
