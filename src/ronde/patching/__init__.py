"""Reversible replacement of functions of torch and Python, and whose code a call comes from."""
