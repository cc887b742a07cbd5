"""Which elements of a parameter, its gradient and its optimizer state each rank has."""
