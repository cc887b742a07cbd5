"""Embedding tables by unbounded ids: index, rows, row optimizers, admission, eviction.

Needs numba (`pip install 'ronde[server]'`) but not torch. The arguments of an `EmbeddingTable` are exported
here, for `ronde.table.Adagrad(lr=0.1)` in a script.
"""

from __future__ import annotations

from ronde.server.table.admission import AdmitAfter, AdmitByBloomFilter, AdmitWithProbability
from ronde.server.table.eviction import EvictByAge, EvictByFrequency, EvictByNorm
from ronde.server.table.initial import Normal, Uniform, Zeros
from ronde.server.table.on_disk import OnDisk
from ronde.server.table.optimizers import FTRL, SGD, Adagrad, Adam, RowwiseAdagrad

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "AdmitAfter",
    "AdmitByBloomFilter",
    "AdmitWithProbability",
    "EvictByAge",
    "EvictByFrequency",
    "EvictByNorm",
    "Normal",
    "OnDisk",
    "RowwiseAdagrad",
    "Uniform",
    "Zeros",
]
