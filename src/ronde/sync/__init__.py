"""How and when local gradients become the update that one device would make."""
