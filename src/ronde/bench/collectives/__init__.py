"""Collectives of ranks on one host, beside the same of Gloo and MPI."""
