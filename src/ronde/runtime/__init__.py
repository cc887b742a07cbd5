"""The composition root: a plan and ranks become a running script."""
