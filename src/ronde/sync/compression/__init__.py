"""How gradients of a bucket are encoded, exchanged and averaged, where they do not travel as they are."""
