"""Cost of the observed first call of a model."""
