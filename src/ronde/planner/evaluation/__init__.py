"""Evaluation of predictions on public tables, for `ronde bench planner`."""
