"""The API of `horovod.torch` 0.28, on ronde's collectives."""
