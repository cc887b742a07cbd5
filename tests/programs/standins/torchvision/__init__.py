"""Stands in for torchvision: scikit-learn's digits as its data sets, the usual transforms, grids."""

from . import datasets, transforms, utils

__all__ = ["datasets", "transforms", "utils"]
__version__ = "0.0"
