"""What `byteps.torch` 0.2 offers, over the engine of Horovod's interface; names are BytePS's."""
