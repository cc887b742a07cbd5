"""What this version can run: every other value of the plan is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["BUILT"]

BUILT: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "state": ("replicated", "zero1", "zero2", "zero3", "central", "server"),
        "sparse": ("replicated", "sharded"),
        "offload": ("none", "optimizer", "all"),
        "algorithm": ("auto", "ring", "tree", "hierarchical", "shared-memory"),
        "precision": ("fp32", "tf32", "bf16", "fp16"),
        "recompute": ("none", "selective", "full"),
        "compile": (False, True),
    }
)
"""The built values of each key that has others; building one adds it here.

Keys that only refine another value (`every` of update=local, `schedule` of a pipeline, ...) are
not listed: without that value they contradict the plan, and with it that value is refused.
"""
