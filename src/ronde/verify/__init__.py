"""Proof of a script: plain python and N ranks, recorded and compared by clause."""
