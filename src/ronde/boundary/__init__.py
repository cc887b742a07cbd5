"""What crosses between the script and the ranks: global tensors outside models, plain shards inside."""
