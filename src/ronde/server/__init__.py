"""Parameter servers: sparse tables, dense shards, log, snapshot, serving replica."""
