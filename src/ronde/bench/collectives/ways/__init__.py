"""How the ranks of each contender do each operation; one module for a library."""
