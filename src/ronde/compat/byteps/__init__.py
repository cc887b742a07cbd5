"""The API of `byteps.torch` 0.2, on the engine of the Horovod API."""
