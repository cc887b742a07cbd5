"""Figures of the cost model: errors on unfitted rows, beside two usual models."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.planner.figure import Figure, errors_of
from benchmarks.planner.rows import Row, bigscience, dlperf, fms, megatron, mpt, mpt_h100, vtrain
from benchmarks.planner.tables import read_table
from ronde.plan import expand
from ronde.planner.candidates import Candidates
from ronde.planner.cluster import Cluster
from ronde.planner.cluster_file import read_cluster
from ronde.planner.collective import FACTORS, collective_seconds
from ronde.planner.fitting import fit_collective, fit_gemm
from ronde.planner.kernels import peak_of
from ronde.planner.link import Constants, Link
from ronde.planner.memory import held, held_by
from ronde.planner.search import search
from ronde.planner.step import overlapped, samples_of, stages, step
from ronde.planner.transformer import MODELS, TransformerSizes, transformer_graph

__all__ = ["figures"]

Floats = NDArray[np.float64]

_GEMM = {"a100": (312e12, 2.039e12), "h100": (989e12, 3.35e12)}
_SPREAD = 1.2
_ITEM = {"half": 2, "int8": 1}


def figures() -> Iterator[Figure]:
    """Yield all figures."""
    for device in _GEMM:
        yield _gemm(device)
    for device in _GEMM:
        yield _nccl(device)
    for device in ("a100", "v100"):
        yield _vtrain(device)
    yield _peaks()
    yield _fits()
    tables = {
        "time, MPT on A100-40": (mpt, 8.0),
        "time, MPT on H100": (mpt_h100, 8.0),
        "time, BigScience": (bigscience, 10.0),
        "time, DLPerf GPT": (dlperf, 15.0),
    }
    rows: list[Row] = []
    for name, (table, target) in tables.items():
        these = list(table())
        rows += these
        yield _time(name, these, target)
    yield from _ranking(rows, "groups", correlation=0.9, largest=12.0)
    yield _time("recomputation, Llama by FSDP", _calibrated(list(fms())), 6.0)
    node = list(vtrain())
    yield _time("time, small models on one A100 node", node, 15.0)
    yield from _ranking(node, "groups on one node", correlation=0.85, largest=20.0)
    usual = dataclasses.replace(MODELS["gpt3-175b"], batch=4096)
    yield _speed("search, 4,096 devices, 96 layers", usual)
    yield _speed("search, experts and long samples", dataclasses.replace(usual, sequence=8192, experts=8))


def _column(rows: Sequence[dict[str, str]], name: str) -> Floats:
    return np.array([float(row[name]) for row in rows])


def _gemm(device: str) -> Figure:
    rows = read_table(f"gemm_{device}_bf16")
    m, n, k, seconds = (_column(rows, name) for name in ("m", "n", "k", "latency_ms"))
    seconds = seconds * 1e-3
    fitted = np.arange(len(rows)) % 4 == 0
    floor, flops, rate = fit_gemm(m[fitted], n[fitted], k[fitted], seconds[fitted])
    work, moved = 2 * m * n * k, 2 * (m * n + m * k + n * k)
    peak, bandwidth = _GEMM[device]
    share = np.median(work[fitted] / seconds[fitted])
    judged = ~fitted
    errors = errors_of(floor + work / flops + moved / rate, seconds)[judged]
    return Figure(
        name=f"GEMM, {device.upper()}",
        unit="%",
        target=8.0,
        value=float(errors.mean()),
        constant=float(errors_of(work / share, seconds)[judged].mean()),
        sheet=float(errors_of(np.maximum(work / peak, moved / bandwidth), seconds)[judged].mean()),
        worst=float(errors.max()),
        rows=int(judged.sum()),
        fitted=int(fitted.sum()),
    )


def _collective(name: str, groups: Iterable[tuple[float, Floats, Floats]], rate: float) -> Figure:
    """Judge a collective on groups of one operation and number of ranks.

    Sizes that are even powers of two are fitted, odd ones judged.
    """
    ours, constant, sheet, fits = [], [], [], 0
    for factor, size, seconds in groups:
        fitted = np.log2(size).astype(int) % 2 == 0
        found = fit_collective(factor, size[fitted], seconds[fitted])
        predicted = found.alpha + factor * size / found.beta + found.gamma * np.sqrt(size)
        share = np.median(factor * size[fitted] / seconds[fitted])
        ours.append(errors_of(predicted, seconds)[~fitted])
        constant.append(errors_of(factor * size / share, seconds)[~fitted])
        sheet.append(errors_of(factor * size / rate, seconds)[~fitted])
        fits += int(fitted.sum())
    errors = np.concatenate(ours)
    return Figure(
        name=name,
        unit="%",
        target=8.0,
        value=float(errors.mean()),
        constant=float(np.concatenate(constant).mean()),
        sheet=float(np.concatenate(sheet).mean()),
        worst=float(errors.max()),
        rows=len(errors),
        fitted=fits,
    )


def _nccl(device: str) -> Figure:
    rows = read_table(f"nccl_{device}")
    rate = {"a100": 300e9, "h100": 450e9}[device]

    def groups() -> Iterator[tuple[float, Floats, Floats]]:
        for operation, factor in FACTORS.items():
            for ranks in (2, 4, 8):
                some = [r for r in rows if r["op"] == operation and int(r["num_gpus"]) == ranks]
                size = np.array([float(r["message_elements_or_bytes"]) * _ITEM[r["dtype"]] for r in some])
                yield factor * (ranks - 1) / ranks, size, _column(some, "latency_ms") * 1e-3

    return _collective(f"collectives, NCCL on {device.upper()}", groups(), rate)


def _vtrain(device: str) -> Figure:
    rows = read_table(f"allreduce_vtrain_{device}")
    rate = {"a100": 300e9, "v100": 150e9}[device]

    def groups() -> Iterator[tuple[float, Floats, Floats]]:
        for ranks in range(2, 9):
            some = [row for row in rows if int(row["num_gpus"]) == ranks]
            yield 2 * (ranks - 1) / ranks, _column(some, "bytes"), _column(some, "time_ns") * 1e-9

    return _collective(f"all-reduce, vTrain's {device.upper()}", groups(), rate)


def _peaks() -> Figure:
    judged, states = [], []
    rows = list(megatron())
    for row in rows:
        if row.fitted:
            continue
        one = Candidates.one(row.point)
        samples = samples_of(row.graph, one)
        found = held_by(row.graph, one, row.software, samples, one.pipeline - 1)
        judged.append(100 * abs(float(found.total[0]) / row.peak - 1))
        alone = float((found.parameters + found.gradients + found.optimizer)[0])
        states.append(100 * abs(alone / row.peak - 1))
    return Figure(
        name="peak memory, Megatron-LM",
        unit="%",
        target=5.0,
        value=float(np.mean(judged)),
        sheet=float(np.mean(states)),
        worst=max(judged),
        rows=len(judged),
        fitted=len(rows) - len(judged),
    )


def _fits() -> Figure:
    """Judge memory on MPT's rows, which all ran: the share predicted to fit."""
    rows = [*mpt(), *mpt_h100()]
    fit = 0
    for row in rows:
        one = Candidates.one(row.point)
        found = held(row.graph, one, row.software, samples_of(row.graph, one))
        fit += int(found.total[0] <= row.cluster.memory)
    return Figure(
        name="MPT rows predicted to fit",
        unit="%",
        target=100.0,
        at_least=True,
        value=100 * fit / len(rows),
        rows=len(rows),
        fitted=0,
    )


def _predicted(row: Row) -> float:
    one = Candidates.one(row.point)
    seconds = float(step(row.cluster, row.graph, one, row.software).total[0])
    return seconds + (_between_copies(row, one) * row.cluster.factor if row.copies > 1 else 0.0)


def _between_copies(row: Row, one: Candidates) -> float:
    """Return the seconds that sums of gradients between copies add, beside backward."""
    size = row.graph.parameters * row.software.wire_gradient / one.data
    between = collective_seconds(
        row.cluster, "all_reduce", size, np.full_like(one.data, row.copies), one.data
    )
    backward = stages(row.cluster, row.graph, one, row.software).backward.max(axis=0)
    return float((overlapped(backward, between) - backward)[0])


def _calibrated(rows: Sequence[Row]) -> list[Row]:
    """Return rows with the factor of their cluster's fitted rows."""
    off: dict[str, list[float]] = {}
    for row in rows:
        if row.fitted:
            off.setdefault(row.cluster.name, []).append(np.log(row.seconds / _predicted(row)))
    return [
        dataclasses.replace(
            row,
            cluster=dataclasses.replace(row.cluster, factor=float(np.exp(np.mean(off[row.cluster.name])))),
        )
        for row in rows
    ]


def _by_sheet(row: Row) -> float:
    """Return the step's seconds on devices and links that reach their data sheets."""
    cluster = _sheet(row.cluster)
    return float(step(cluster, row.graph, Candidates.one(row.point), row.software).total[0])


def _sheet(cluster: Cluster) -> Cluster:
    groups = tuple(
        dataclasses.replace(
            group,
            device=dataclasses.replace(
                group.device,
                gemm_floor=0.0,
                gemm_efficiency=1.0,
                gemm_bandwidth=1.0,
                attention_efficiency=1.0,
                copy_efficiency=1.0,
                launch=0.0,
                sustained=1.0,
                host=0.0,
            ),
        )
        for group in cluster.groups
    )
    node = Link(usual=Constants(alpha=0.0, beta=cluster.node.usual.beta))
    usual = Constants(alpha=0.0, beta=cluster.network.usual.beta)
    network = Link(usual=usual, nics=cluster.network.nics)
    return dataclasses.replace(cluster, groups=groups, node=node, network=network, factor=1.0)


def _ideal_seconds(row: Row) -> float:
    """Return the step's seconds at the peak."""
    return row.graph.step_flops / (row.cluster.devices * peak_of(row.cluster.slowest, row.software.precision))


def _time(name: str, rows: Sequence[Row], target: float) -> Figure:
    fitted = [row for row in rows if row.fitted]
    judged = [row for row in rows if not row.fitted]
    measured = np.array([row.seconds for row in judged])
    share = {
        name: float(
            np.mean([_ideal_seconds(row) / row.seconds for row in fitted if row.cluster.name == name])
        )
        for name in {row.cluster.name for row in fitted}
    }

    def mean(predict: Callable[[Row], float]) -> tuple[float, float]:
        errors = errors_of(np.array([predict(row) for row in judged]), measured)
        return float(errors.mean()), float(errors.max())

    value, worst = mean(_predicted)
    return Figure(
        name=name,
        unit="%",
        target=target,
        value=value,
        constant=mean(lambda row: _ideal_seconds(row) / share[row.cluster.name])[0],
        sheet=mean(_by_sheet)[0],
        worst=worst,
        rows=len(judged),
        fitted=len(fitted),
    )


def _ranking(rows: Sequence[Row], among: str, *, correlation: float, largest: float) -> Iterator[Figure]:
    """Judge the order of plans of one model, cluster and batch, and its regret.

    Args:
        correlation, largest: the targets of the rank correlation and of the largest regret in per cent.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if not row.fitted:
            groups.setdefault(f"{row.group}, batch {row.graph.batch}, {row.graph.tokens}", []).append(row)
    several = [group for group in groups.values() if len(group) > 1]
    apart = [group for group in several if _spread(group) > _SPREAD]
    models = {"value": _predicted, "constant": _ideal_seconds, "sheet": _by_sheet}
    found = {
        name: float(np.mean([_correlation(group, predict) for group in apart]))
        for name, predict in models.items()
        if name != "constant"
    }
    size = sum(map(len, apart))
    yield Figure(
        name=f"rank correlation, {len(apart)} {among}",
        unit="",
        target=correlation,
        at_least=True,
        rows=size,
        fitted=0,
        **found,
    )
    regrets = {name: [_regret(group, predict) for group in several] for name, predict in models.items()}
    count = sum(map(len, several))
    yield Figure(
        name=f"regret, {len(several)} {among}, mean",
        unit="%",
        target=5.0,
        value=float(np.mean(regrets["value"])),
        sheet=float(np.mean(regrets["sheet"])),
        worst=max(regrets["value"]),
        rows=count,
        fitted=0,
    )
    yield Figure(
        name=f"regret, {len(several)} {among}, largest",
        unit="%",
        target=largest,
        value=max(regrets["value"]),
        sheet=max(regrets["sheet"]),
        rows=count,
        fitted=0,
    )


def _spread(group: Sequence[Row]) -> float:
    seconds = [row.seconds for row in group]
    return max(seconds) / min(seconds)


def _correlation(group: Sequence[Row], predict: Callable[[Row], float]) -> float:
    """Return Spearman's rank correlation, ties sharing their mean rank."""
    predicted = _ranks(np.array([predict(row) for row in group]))
    measured = _ranks(np.array([row.seconds for row in group]))
    if predicted.std() == 0:
        return 0.0
    return float(np.corrcoef(predicted, measured)[0, 1])


def _ranks(values: Floats) -> Floats:
    return np.array([(values < each).sum() + ((values == each).sum() - 1) / 2 for each in values])


def _regret(group: Sequence[Row], predict: Callable[[Row], float]) -> float:
    chosen = min(group, key=predict)
    return 100 * (chosen.seconds / min(row.seconds for row in group) - 1)


def _speed(name: str, model: TransformerSizes) -> Figure:
    """Measure processor seconds of a search on 4,096 devices."""
    graph, cluster = transformer_graph(model), read_cluster("dgx-a100").resized(4096)
    begun = time.process_time()
    answer = search(graph, cluster, expand("precision=bf16"))
    seconds = time.process_time() - begun
    return Figure(
        name=name,
        unit="s",
        target=1.0,
        value=seconds,
        rows=answer.considered,
        fitted=0,
    )
