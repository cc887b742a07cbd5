"""Ways of synchronising between hosts of a slow network, and on one host."""
