"""Exchanges of a parameter server and its workers on one host."""
