"""How many images a data set has."""

IMAGES = 1280
