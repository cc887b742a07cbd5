"""How good the predictions are, on public tables: what `ronde bench planner` prints."""
