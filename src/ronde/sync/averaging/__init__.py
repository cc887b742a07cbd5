"""Ranks that train by themselves and average their parameters, each protocol in a file of its own."""
