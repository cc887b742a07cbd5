"""Horovod's names, for scripts that import them from here."""

from horovod.torch import *
from horovod.torch import allreduce_async_, rank, size, synchronize
