"""What `horovod.torch` 0.28 offers, over ronde's collectives; names and semantics are Horovod's."""
