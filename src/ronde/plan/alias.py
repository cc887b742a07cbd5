"""Aliases from other systems for plans and keys."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["ALIASES", "KEY_ALIASES", "SEVERAL_MEANINGS", "alias_of", "plain"]


def _table(*rows: tuple[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: meaning for names, meaning in rows for name in names.split()})


ALIASES = _table(
    (
        "dp data-parallel distributeddataparallel distributed-data-parallel horovod ddp-spawn ddp-notebook",
        "ddp",
    ),
    ("ddp-find-unused-parameters-true ddp-find-unused-parameters-false", "ddp"),
    ("mirrored mirrored-strategy mirroredstrategy collective all-reduce allreduce", "ddp"),
    ("multi-worker-mirrored multi-worker-mirrored-strategy multiworkermirroredstrategy", "ddp"),
    ("dataparallel central-storage central-storage-strategy centralstoragestrategy", "central"),
    ("fsdp fsdp1 fsdp2 full-shard fully-shard fullyshardeddataparallel", "zero3"),
    ("shard-grad-op", "zero2"),
    (
        "zero-1 stage1 stage-1 zero-stage-1 deepspeed-stage-1 zeroredundancyoptimizer",
        "zero1",
    ),
    ("zero-2 stage2 stage-2 zero-stage-2 deepspeed-stage-2", "zero2"),
    ("zero-3 stage3 stage-3 zero-stage-3 deepspeed-stage-3", "zero3"),
    ("zero-offload deepspeed-stage-2-offload", "zero2,offload=optimizer"),
    ("zero-infinity deepspeed-stage-3-offload", "zero3,offload=all"),
    ("parameter-server parameterserver dist-sync dist-device-sync", "ps"),
    ("parameter-server-strategy parameterserverstrategy dist-async a-sync", "ps-async"),
    ("geo-sgd", "geo"),
    ("localsgd post-local-sgd", "local-sgd"),
    ("torchrec dlrm hybridbackend persia", "hybrid"),
)
"""Items of the plan by alias."""

KEY_ALIASES = _table(
    ("tp tensor-parallel tensor-parallel-size tensor-model-parallel-size tp-size tp-degree", "tensor"),
    (
        "pp pipeline-parallel pipeline-parallel-size pipeline-model-parallel-size pp-size pp-degree",
        "pipeline",
    ),
    ("cp context-parallel context-parallel-size cp-size cp-degree", "context"),
    ("ep expert-parallel expert-parallel-size expert-model-parallel-size ep-size ep-degree", "expert"),
    ("dp data-parallel data-parallel-size dp-size dp-degree", "data"),
    ("microbatches num-microbatches", "micro-batches"),
    ("mixed-precision", "precision"),
    ("activation-checkpointing gradient-checkpointing", "recompute"),
)
"""Keys of the plan by alias."""

SEVERAL_MEANINGS = _table(
    ("deepspeed zero", "zero1, zero2 or zero3, by the stage of its configuration"),
    ("megatron megatron-lm tensor-parallelism", "tensor=N, with pipeline=N for stages"),
    ("gpipe torchgpipe pipeline-parallelism", "pipeline=N,micro-batches=M"),
    ("1f1b pipedream pipedream-flush", "pipeline=N,micro-batches=M,schedule=1f1b"),
    ("sequence-parallel sp ulysses ring-attention", "context=N"),
    ("moe mixture-of-experts", "expert=N"),
)
"""Advice by ambiguous name."""


def plain(word: str) -> str:
    """Normalize a name: `ZeRO_3` and `zero-3` are one."""
    return word.lower().replace("_", "-")


def alias_of(name: str, value: str | None = None) -> str | None:
    """Return the items of an alias, or None. An alias of a key comes with a value.

    >>> alias_of("FSDP2"), alias_of("tp", "2"), alias_of("stage", "3"), alias_of("ddp")
    ('zero3', 'tensor=2', 'zero3', None)
    """
    word = plain(name)
    if value is None:
        return ALIASES.get(word)
    if word in ("zero", "stage", "zero-stage") and value in ("1", "2", "3"):
        return f"zero{value}"
    return f"{KEY_ALIASES[word]}={value}" if word in KEY_ALIASES else None
