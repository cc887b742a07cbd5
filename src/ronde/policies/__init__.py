"""Which shard spec each parameter of a model gets: pure functions of model, mesh and options."""
