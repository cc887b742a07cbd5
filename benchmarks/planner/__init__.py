"""Predictions of the cost model, judged on public tables."""
