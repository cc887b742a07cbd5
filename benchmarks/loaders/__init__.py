"""Ways to load images, in plain Python and on two ranks."""
