"""How work and state are cut over ranks."""
