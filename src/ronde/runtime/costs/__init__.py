"""Costs of one step of a script, measured on tensors without data.

Costs are the operations of the step and the tensors that it keeps.
"""
