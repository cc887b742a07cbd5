"""Kills of servers and workers of a training, which must not change its result.

`python -m benchmarks.kills --kills 100 --json FILE`.
"""
