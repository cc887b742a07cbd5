"""Rows of the public tables: cluster, model, plan, and measured seconds or bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from benchmarks.planner.tables import read_table
from ronde.planner.candidates import Point
from ronde.planner.cluster import Cluster
from ronde.planner.cluster_file import read_cluster
from ronde.planner.graph import CostGraph
from ronde.planner.software import Software
from ronde.planner.transformer import TransformerSizes, transformer_graph

__all__ = ["Row", "bigscience", "dlperf", "fms", "megatron", "mpt", "mpt_h100", "vtrain"]

_MPT = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
_MPT_VOCABULARY = 50368
# FSDP in pure bfloat16 keeps a full-precision shard, and gathers the parameters that it computes with.
_FSDP = Software(
    precision="bf16",
    itemsize=2.0,
    parameter=4.0,
    gradient=4.0,
    optimizer=8.0,
    wire_parameter=2.0,
    wire_gradient=2.0,
    keeps_results=False,
)
# Layers, hidden and inner size, heads, groups of keys (fms_fsdp/utils/config_utils.py of fms-fsdp).
_LLAMA = {
    "7b": (32, 4096, 11008, 32, 32),
    "13b": (40, 5120, 13824, 40, 40),
    "34b": (48, 8192, 22016, 64, 8),
    "70b": (80, 8192, 28672, 64, 8),
}
# Operations of the loop for a micro-batch, fitted to every second row of vTrain's table.
_LOOP = 31.0
# An update copies fp16 gradients to fp32, unscales, clips (each reads and writes them), runs Adam, and copies
# parameters back: 6 + 8 + 12 + 28 + 6 bytes (Megatron-LM, `MixedPrecisionOptimizer.step`).
_MEGATRON = Software(
    precision="bf16",
    itemsize=2.0,
    parameter=2.0,
    gradient=4.0,
    optimizer=12.0,
    wire_parameter=2.0,
    wire_gradient=4.0,
    keeps_results=False,
    fixed=99e6,
    bucket=1e12,
    overlaps=False,
    waits=True,
    fused_heads=4,
    update_moves=60.0,
    loop=_LOOP,
)
# Of fp16 logits: a cast to fp32, the maximum, its subtraction, exponentials, their sum, a division; and in
# backward a product and a cast: 54 bytes of each, a third in forward (`vocab_parallel_cross_entropy`).
_LOSS_MOVES = 9


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One measured run.

    Attributes:
        table, number: the table and the row in it.
        group: the name of the rows of one model, cluster and batch, among which a planner chooses.
        seconds: seconds of a step; 0 where only memory was measured.
        peak: bytes allocated at most; 0 where these were not recorded.
        fitted: whether constants were fitted to it: such rows are in no figure.
        copies: clusters like this one, each with the whole model, that sum gradients beside backward.
    """

    table: str
    number: int
    group: str
    cluster: Cluster
    graph: CostGraph
    point: Point
    software: Software
    seconds: float = 0.0
    peak: float = 0.0
    fitted: bool = False
    copies: int = 1


def mpt() -> Iterator[Row]:
    """Yield llm-foundry's A100-40 rows. Six of 78 are fitted: sizes, long samples, several nodes."""
    fitted = {
        ("125m", 8, 2048),
        ("1b", 8, 2048),
        ("7b", 8, 2048),
        ("760m", 8, 16384),
        ("3b", 64, 2048),
        ("350m", 64, 2048),
    }
    yield from _mpt("mpt_a100_40", "a100-40-roce", fitted)


def mpt_h100() -> Iterator[Row]:
    """Yield llm-foundry's H100 rows in the table; three are fitted."""
    yield from _mpt("mpt_h100", "dgx-h100", {("70b", 64, 2048), ("30b", 16, 2048), ("30b", 8, 8192)})


def _mpt(table: str, cluster: str, fitted: set[tuple[str, int, int]]) -> Iterator[Row]:
    preset = read_cluster(cluster)
    for row in read_table(table):
        layers, hidden, heads = _MPT[row["model"]]
        devices, accumulation = int(row["devices"]), int(row["accumulation"])
        batch = devices * accumulation * int(row["micro_batch"])
        sequence = int(row["sequence"])
        model = TransformerSizes(
            name=f"MPT {row['model']}",
            layers=layers,
            hidden=hidden,
            heads=heads,
            vocabulary=_MPT_VOCABULARY,
            sequence=sequence,
            batch=batch,
            positions=True,
        )
        yield Row(
            table=table,
            number=int(row["source_row"]),
            group=f"{table} {row['model']} {devices} devices",
            cluster=preset.resized(devices),
            graph=transformer_graph(model),
            point=Point(
                data=devices,
                micro_batches=accumulation,
                placement=3,
                recompute=2 if row["recompute"] == "full" else 0,
            ),
            software=_FSDP,
            seconds=batch * sequence / float(row["tokens_per_s"]),
            fitted=(row["model"], devices, sequence) in fitted,
        )


def bigscience() -> Iterator[Row]:
    """Yield BigScience's rows on A100-80; one is the calibration."""
    preset = read_cluster("a100-80-opa")
    software = dataclasses.replace(_MEGATRON, precision="fp16", gradient=2.0, wire_gradient=2.0)
    for row in read_table("bigscience_a100_80"):
        data, tensor, pipeline = int(row["data"]), int(row["tensor"]), int(row["pipeline"])
        batch = int(row["global_batch"])
        model = TransformerSizes(
            name=f"{row['layers']} x {row['hidden']}",
            layers=int(row["layers"]),
            hidden=int(row["hidden"]),
            heads=int(row["heads"]),
            vocabulary=250880,
            sequence=2048,
            batch=batch,
            dropout=True,
            fused_attention=False,
            loss_moves=_LOSS_MOVES,
        )
        yield Row(
            table="bigscience_a100_80",
            number=int(row["source_row"]),
            group=f"bigscience {model.name} {row['heads']} heads {row['nodes']} nodes {row['date']}",
            cluster=preset.resized(int(row["nodes"]) * 8),
            graph=transformer_graph(model),
            point=Point(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                micro_batches=-(-batch // (data * int(row["micro_batch"]))),
                placement=1,
                recompute=2,
            ),
            software=software,
            seconds=float(row["seconds"]),
            fitted=row["source_row"] == "26",
        )


def fms() -> Iterator[Row]:
    """Yield rows of Llama by FSDP, fitted where nothing is recomputed.

    Where a node has the whole model (`HYBRID_SHARD`), it is the cluster, and the others are copies.
    """
    # FSDP in bfloat16, `CheckpointImpl.NO_REENTRANT`.
    software = dataclasses.replace(_FSDP, stops_early=True)
    for row in read_table("fms_fsdp"):
        preset = read_cluster("dgx-a100" if row["device"] == "A100-80" else "dgx-h100")
        card = dataclasses.replace(preset.network.usual, beta=float(row["gbit_s"]) * 1e9 / 8)
        preset = dataclasses.replace(preset, network=dataclasses.replace(preset.network, usual=card, nics=1))
        layers, hidden, inner, heads, groups = _LLAMA[row["model"]]
        devices = int(row["devices"])
        ranks = preset.node_size if row["sharding"] == "hybrid" else devices
        model = TransformerSizes(
            name=f"Llama {row['model']}",
            layers=layers,
            hidden=hidden,
            heads=heads,
            key_value_heads=groups,
            feed_forward=inner,
            gated=True,
            vocabulary=32000,
            sequence=4096,
            batch=ranks * int(row["batch"]),
            tied=False,
        )
        yield Row(
            table="fms_fsdp",
            number=int(row["source_row"]),
            group=f"fms {row['model']} on {row['device']}",
            cluster=preset.resized(ranks),
            graph=transformer_graph(model),
            point=Point(data=ranks, placement=3, recompute=2 if row["recompute"] == "full" else 0),
            software=software,
            seconds=int(row["batch"]) * model.sequence / float(row["tokens_per_s_device"]),
            fitted=row["recompute"] == "none",
            copies=devices // ranks,
        )


def dlperf() -> Iterator[Row]:
    """Yield DLPerf's Megatron-LM rows on V100.

    Fitted are one device, data over two nodes, tensor over two nodes.
    """
    preset = read_cluster("8xV100-100GbE")
    software = dataclasses.replace(_MEGATRON, precision="fp16", gradient=2.0, wire_gradient=2.0)
    for row in read_table("dlperf_gpt_v100"):
        data, tensor, pipeline = int(row["data"]), int(row["tensor"]), int(row["pipeline"])
        batch, hidden, layers = int(row["global_batch"]), int(row["hidden"]), int(row["layers"])
        model = TransformerSizes(
            name=f"{hidden} x {layers}",
            layers=layers,
            hidden=hidden,
            heads=16 if hidden != 768 else 12,
            vocabulary=51200,
            sequence=2048,
            batch=batch,
            positions=True,
            dropout=True,
            fused_attention=False,
            loss_moves=_LOSS_MOVES,
        )
        # The batch of pipelines is 32 times that of the rows without: so many accumulations.
        micro = 1 if pipeline == 1 else 32
        yield Row(
            table="dlperf_gpt_v100",
            number=int(row["source_row"]),
            group=f"dlperf {model.name} batch {batch} on {data * tensor * pipeline}",
            cluster=preset.resized(data * tensor * pipeline),
            graph=transformer_graph(model),
            point=Point(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                micro_batches=micro,
                recompute=2,
            ),
            software=software,
            seconds=batch / float(row["megatron_samples_per_s"]),
            fitted=row["source_row"] in ("1", "3", "7"),
        )


def vtrain() -> Iterator[Row]:
    """Yield vTrain's rows of Megatron-DeepSpeed on A100; every second one is fitted."""
    preset = read_cluster("dgx-a100")
    software = dataclasses.replace(_MEGATRON, precision="fp16", gradient=2.0, wire_gradient=2.0)
    for row in read_table("vtrain_single_a100"):
        data, tensor, pipeline = int(row["data"]), int(row["tensor"]), int(row["pipeline"])
        batch, devices = int(row["global_batch"]), int(row["devices"])
        model = TransformerSizes(
            name=f"{row['layers']} x {row['hidden']}",
            layers=int(row["layers"]),
            hidden=int(row["hidden"]),
            heads=int(row["heads"]),
            vocabulary=51200,
            sequence=int(row["sequence"]),
            batch=batch,
            positions=True,
            dropout=True,
            fused_attention=False,
            loss_moves=_LOSS_MOVES,
        )
        yield Row(
            table="vtrain_single_a100",
            number=int(row["source_row"]),
            group=f"vtrain {model.name} on {devices}",
            cluster=preset.resized(devices),
            graph=transformer_graph(model),
            point=Point(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                micro_batches=batch // (data * int(row["micro_batch"])),
                recompute=2,
            ),
            software=software,
            seconds=float(row["ms"]) * 1e-3,
            fitted=int(row["source_row"]) % 2 == 1,
        )


def megatron() -> Iterator[Row]:
    """Yield the peak memory of Megatron-LM's tests. The constant of its workspaces was fitted to two rows."""
    preset = read_cluster("dgx-h100")
    for number, row in enumerate(read_table("megatron_memory"), 1):
        data, tensor, pipeline = int(row["data"]), int(row["tensor"]), int(row["pipeline"])
        pad = 128 * tensor
        model = TransformerSizes(
            name=row["case"],
            layers=int(row["layers"]),
            hidden=int(row["hidden"]),
            heads=int(row["heads"]),
            key_value_heads=int(row["key_value_heads"]),
            vocabulary=-(-int(row["vocabulary"]) // pad) * pad,
            sequence=int(row["sequence"]),
            batch=int(row["global_batch"]),
            tied=row["tied"] == "true",
            dropout=True,
            positions=True,
            fused_attention=row["attention"] == "flash",
        )
        chunks = int(row["chunks"])
        yield Row(
            table="megatron_memory",
            number=number,
            group=row["case"],
            cluster=preset.resized(8),
            graph=transformer_graph(model),
            point=Point(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                micro_batches=model.batch // (data * int(row["micro_batch"])),
                placement=1 if row["distributed_optimizer"] == "true" else 0,
                schedule=2 if chunks > 1 else 1,
                chunks=chunks,
            ),
            software=_MEGATRON,
            peak=float(row["peak_bytes"]),
            fitted=row["case"] in ("te_tp1_pp4", "mcore_tp4_pp1"),
        )
