"""Whether `reset` and `step` give what they give since gym 0.26."""

NEW = False
