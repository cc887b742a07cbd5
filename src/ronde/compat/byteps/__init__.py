"""What `byteps.torch` 0.2 offers, over the same engine as Horovod's interface; names and semantics are BytePS's."""
