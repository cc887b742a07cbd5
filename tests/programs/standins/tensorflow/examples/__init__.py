"""Stands in for the part of TensorFlow 1 that old programs took their digits from."""
