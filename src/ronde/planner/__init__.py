"""Planner: a cost model, a simulator and a search over plans, without torch."""
