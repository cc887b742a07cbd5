"""Memory of a rank, measured by kind."""
