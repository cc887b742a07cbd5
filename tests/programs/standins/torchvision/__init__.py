"""Stands in for torchvision: scikit-learn's digits as its data sets, the usual transforms, grids."""

from . import datasets, models, transforms, utils

__all__ = ["datasets", "models", "transforms", "utils"]
__version__ = "0.0"
