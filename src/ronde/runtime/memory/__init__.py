"""How much memory a rank needs, by kind."""
