"""Strategies: the parts of a plan that act on models.

Each is a final class; a session holds them in order.
"""
