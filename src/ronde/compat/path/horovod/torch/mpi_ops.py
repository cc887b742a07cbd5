"""The names that scripts take from here."""

from horovod.torch import *
from horovod.torch import allreduce_async_, rank, size, synchronize
