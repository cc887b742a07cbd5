"""Sharded data loading: each rank loads its rows of a DataLoader's batches."""
