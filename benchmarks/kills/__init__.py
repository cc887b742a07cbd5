"""A training whose servers and workers are killed again and again, and that ends as if nothing had been.

`python -m benchmarks.kills --kills 100 --json FILE`.
"""
