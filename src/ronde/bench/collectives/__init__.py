"""Collectives of ranks on one host, against those of Gloo and MPI."""
