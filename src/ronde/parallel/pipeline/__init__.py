"""Pipeline parallelism: calls of a model of which each rank carries out its stage."""
