"""Presets: names for well-known plans, and the systems that each equals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["PRESETS", "Preset"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A named plan.

    Attributes:
        name: the bare word in a plan.
        items: the items that the preset stands for, in the grammar's own words; empty for the default plan.
        equals: the systems that train by this plan.
    """

    name: str
    items: str
    equals: tuple[str, ...]


_ALL = (
    Preset(
        name="ddp",
        items="state=replicated,update=sync",
        equals=(
            "PyTorch DDP",
            "TensorFlow MirroredStrategy and MultiWorkerMirroredStrategy",
            "Paddle collective",
            "Horovod",
            "OneFlow data parallel",
        ),
    ),
    Preset(
        name="hierarchical",
        items="state=replicated,algorithm=hierarchical",
        equals=("Horovod and Paddle hierarchical all-reduce", "BytePS's reduction within a node"),
    ),
    Preset(
        name="central",
        items="state=central",
        equals=(
            "PyTorch DataParallel",
            "TensorFlow CentralStorageStrategy",
            "MXNet kvstore local and device",
        ),
    ),
    Preset(
        name="zero1",
        items="state=zero1",
        equals=("DeepSpeed ZeRO stage 1", "PyTorch ZeroRedundancyOptimizer", "Paddle sharding stage 1"),
    ),
    Preset(
        name="zero2",
        items="state=zero2",
        equals=("DeepSpeed ZeRO stage 2", "PyTorch FSDP, gradients sharded", "Paddle sharding stage 2"),
    ),
    Preset(
        name="zero3",
        items="state=zero3",
        equals=("DeepSpeed ZeRO stage 3", "PyTorch FSDP", "Paddle sharding stage 3"),
    ),
    Preset(
        name="ps",
        items="state=server,update=sync,optimizer-on=server",
        equals=("MXNet dist_sync", "BytePS (with optimizer-on=worker)"),
    ),
    Preset(
        name="ps-async",
        items="state=server,update=async,optimizer-on=server",
        equals=("MXNet dist_async", "TensorFlow ParameterServerStrategy", "Paddle a_sync"),
    ),
    Preset(
        name="ps-bounded",
        items="state=server,update=bounded,staleness=4,optimizer-on=server",
        equals=("Persia's bounded staleness",),
    ),
    Preset(name="geo", items="state=server,update=geo,every=100", equals=("Paddle GEO-SGD",)),
    Preset(name="local-sgd", items="update=local,every=8", equals=("Paddle LocalSGD", "post-local SGD")),
    Preset(name="dgc", items="compressor=topk,error-feedback=true", equals=("Paddle DGC",)),
    Preset(name="onebit", items="compressor=onebit,error-feedback=true", equals=("BytePS onebit",)),
    Preset(name="twobit", items="compressor=twobit,error-feedback=true", equals=("MXNet 2-bit compression",)),
    Preset(name="bytegrad", items="compressor=int8", equals=("Bagua ByteGrad",)),
    Preset(name="qadam", items="compressor=int8,compressed=momentum", equals=("Bagua QAdam",)),
    Preset(
        name="powersgd",
        items="compressor=powersgd,error-feedback=true",
        equals=("PyTorch DDP's PowerSGD hook",),
    ),
    Preset(
        name="fp16-allreduce",
        items="compressor=fp16",
        equals=("Horovod Compression.fp16", "Paddle fp16_allreduce"),
    ),
    Preset(name="decentralized", items="update=decentralized,peers=all", equals=("Bagua decentralized",)),
    Preset(
        name="decentralized-lowprec",
        items="update=decentralized,peers=shift-one,compressor=int8",
        equals=("Bagua low-precision decentralized",),
    ),
    Preset(name="async-average", items="update=async-average", equals=("Bagua asynchronous model average",)),
    Preset(
        name="hybrid",
        items="state=replicated,sparse=sharded",
        equals=("HybridBackend", "Persia", "DLRM", "TorchRec"),
    ),
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _ALL})
"""Every preset by its name, in the order of the documentation."""
