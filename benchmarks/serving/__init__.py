"""Latency and age of a replica's answers while a model is trained."""
