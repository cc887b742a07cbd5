"""ronde: an unmodified single-device PyTorch script on many devices, with the single-device answer.

Everything public is named here and imported on first use: `import ronde` itself imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ronde.launch.function import launch
    from ronde.plan import Plan
    from ronde.runtime.api import deferred, init, is_main, prepare, rank, world_size
    from ronde.runtime.step import Step
    from ronde.server import table
    from ronde.server.embedding_table import EmbeddingTable
    from ronde.server.kv_store import KVStore
    from ronde.server.serving.client import ReplicaClient

__version__ = "0.1.0"

__all__ = [
    "EmbeddingTable",
    "KVStore",
    "Plan",
    "ReplicaClient",
    "Step",
    "__version__",
    "deferred",
    "init",
    "is_main",
    "launch",
    "prepare",
    "rank",
    "table",
    "world_size",
]

# Rooms that are themselves what is meant.
_ROOMS = {"launch": "ronde.launch", "table": "ronde.server.table"}
_HOMES = {
    "EmbeddingTable": "ronde.server.embedding_table",
    "KVStore": "ronde.server.kv_store",
    "Plan": "ronde.plan",
    "ReplicaClient": "ronde.server.serving.client",
    "Step": "ronde.runtime.step",
    "deferred": "ronde.runtime.api",
    "init": "ronde.runtime.api",
    "is_main": "ronde.runtime.api",
    "prepare": "ronde.runtime.api",
    "rank": "ronde.runtime.api",
    "world_size": "ronde.runtime.api",
}


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magic `%%ronde`; IPython calls this for `%load_ext ronde`."""
    importlib.import_module("ronde.cli.notebook").load(shell)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'ronde' has no attribute {name!r}; it has {', '.join(__all__)} [R383]")
    if name in _ROOMS:
        return importlib.import_module(_ROOMS[name])
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
