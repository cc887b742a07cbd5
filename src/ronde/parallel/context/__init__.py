"""Context parallelism: sequences cut over ranks, and attention between them."""
