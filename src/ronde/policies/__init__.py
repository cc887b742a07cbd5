"""Sharding policies: pure functions from model, mesh and options to shard specs."""
