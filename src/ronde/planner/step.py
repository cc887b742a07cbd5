"""Seconds of a step in closed form, for all candidates at once.

T = m max(stage) + sum of the other stages / v for a pipeline of m micro-batches and v chunks (Narayanan et
al. 2021); where p stages do not divide m, (v - 1)(p - m mod p) more chunks (Calculon). A micro-batch takes
the longer of a stage's device and its host, which starts operations ahead. While compute and communication
overlap, both run 1.13 times slower, then the rest at full speed (Galvatron).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from ronde.planner.attended import gathered_again, gathered_bytes, goes_round
from ronde.planner.candidates import Candidates, kinds_of
from ronde.planner.cluster import Cluster
from ronde.planner.collective import collective_seconds, send_seconds
from ronde.planner.graph import CostGraph, ModelBlock
from ronde.planner.kernels import RankShare, block_seconds, operations, peak_of
from ronde.planner.memory import stage_layers, stage_parameters
from ronde.planner.software import Software
from ronde.planner.traffic import USUAL, PlanTraffic

__all__ = ["OVERLAP", "StageSeconds", "StepTime", "flops_share", "overlapped", "samples_of", "stages", "step"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# With a division by tokens a gather comes before a product, and a sum of parts after the next.
_HALVES = ("all_gather", "reduce_scatter")

OVERLAP = 1.13
"""Factor by which overlapping compute and communication slow down (Galvatron)."""


@dataclasses.dataclass(frozen=True, slots=True)
class StageSeconds:
    """Seconds of one micro-batch on the first, middle and last stage.

    The arrays are (3, candidates).

    Attributes:
        forward, backward: seconds with the exchanges of tensor and context parallelism, and the gathers of
            `zero3`.
        exchanged: the share of both that is communication.
        waiting: the share of both in which the device waits for the host to start operations.
        send: seconds of one boundary between stages, one way.
    """

    forward: Floats
    backward: Floats
    exchanged: Floats
    waiting: Floats
    send: Floats


@dataclasses.dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step and its parts, in arrays with an entry per candidate.

    Attributes:
        total: seconds of the step.
        compute: seconds of the slowest stage's micro-batches, without communication.
        exchange: seconds of its micro-batches' communication that are not hidden.
        host: seconds in which its device waits for the host to start operations.
        bubble: seconds in which stages wait for each other.
        gradients: seconds of the traffic once a step that are not hidden.
        optimizer: seconds of the update.
        loader: seconds for which the step waits for data.
    """

    total: Floats
    compute: Floats
    exchange: Floats
    host: Floats
    bubble: Floats
    gradients: Floats
    optimizer: Floats
    loader: Floats

    def take(self, places: Ints) -> StepTime:
        """Select candidates by their places."""
        return StepTime(*(getattr(self, field.name)[places] for field in dataclasses.fields(self)))


def overlapped(compute: Floats, communication: Floats) -> Floats:
    """Return the seconds of both together.

    >>> overlapped(np.array(10.0), np.array(1.0)).item()
    10.13
    """
    return np.maximum(compute, communication) + (OVERLAP - 1) * np.minimum(compute, communication)


def _beside(cluster: Cluster, compute: Floats, communication: Floats) -> Floats:
    """Return the seconds of compute with communication.

    Processors that sum gradients themselves do one thing at a time.
    """
    if cluster.backend == "gloo":
        return compute + communication
    return overlapped(compute, communication)


def samples_of(graph: CostGraph, candidates: Candidates) -> Floats:
    """Return the samples of a micro-batch on the rank that has most."""
    ranks = np.ceil(graph.batch / candidates.data)
    return np.ceil(ranks / candidates.micro_batches)


def _alike(c: Candidates) -> tuple[Candidates, Ints]:
    """Return candidates of which blocks differ, and the place among them of each candidate's.

    Schedules and states that gather nothing make no difference to a block.
    """
    gathers, alone = c.placement >= 3, c.pipeline == 1
    first, which = kinds_of(
        [c.data, c.tensor, c.context, c.expert, c.micro_batches, c.recompute, gathers, alone]
    )
    return c.take(first), which


def stages(cluster: Cluster, graph: CostGraph, candidates: Candidates, software: Software) -> StageSeconds:
    """Return the seconds of a micro-batch on each kind of stage."""
    c = candidates
    blocks = (graph.first, graph.block, graph.last)
    alike, which = _alike(c)
    shares = RankShare(samples_of(graph, alike), alike.tensor.astype(float), alike.context.astype(float))
    parts = [
        tuple(each[which] for each in _block(cluster, graph, block, alike, software, shares))
        for block in blocks
    ]
    (first_f, first_b, first_x), (block_f, block_b, block_x), (last_f, last_b, last_x) = parts
    places = [np.zeros_like(c.pipeline), np.minimum(np.ones_like(c.pipeline), c.pipeline - 1), c.pipeline - 1]
    # A captured forward is one operation, and so is its backward.
    loop = (software.loop + 2 * (software.kernels == "captured")) * cluster.slowest.host
    starts = [_host_seconds(cluster, block, alike, software, shares)[which] for block in blocks]
    forward, backward, exchanged, waiting = [], [], [], []
    for place in places:
        layers = stage_layers(graph.layers, c.pipeline, place)
        first, last = place == 0, place == c.pipeline - 1
        there = layers * block_f + first * first_f + last * last_f
        back = layers * block_b + first * first_b + last * last_b
        host = loop + layers * starts[1] + first * starts[0] + last * starts[2]
        wait = np.maximum(0.0, host - there - back)
        if software.waits:
            wait = np.where(c.pipeline > 1, np.maximum(0.0, host - loop - there - back) + loop, wait)
        longer = 1 + wait / (there + back)
        forward.append(there * longer)
        backward.append(back * longer)
        waiting.append(wait)
        exchanged.append(layers * block_x + first * first_x + last * last_x)
    size = graph.block.output * samples_of(graph, c) * software.itemsize / (c.context * c.tensor)
    stride = c.tensor * c.context * c.data
    send = np.where(c.pipeline > 1, send_seconds(cluster, size, stride), 0.0)
    return StageSeconds(np.stack(forward), np.stack(backward), np.stack(exchanged), np.stack(waiting), send)


def step(
    cluster: Cluster,
    graph: CostGraph,
    candidates: Candidates,
    software: Software,
    algorithm: str = "auto",
    traffic: PlanTraffic = USUAL,
) -> StepTime:
    """Return the seconds of a step."""
    c = candidates
    each = stages(cluster, graph, c, software)
    m, p = c.micro_batches, c.pipeline
    both = each.forward + each.backward + 2 * each.send * (p > 1)
    slowest = both.max(axis=0)
    worst = both.argmax(axis=0)
    exchanged = np.choose(worst, each.exchanged) + 2 * each.send
    body = m * slowest
    waiting = np.choose(worst, each.waiting)
    others = both[0] + (p > 1) * both[2] + np.maximum(p - 2, 0) * both[1] - slowest
    bubble = _bubble(c, slowest, others)
    if cluster.crowd > 1:
        bubble = _filled(cluster, c, body, bubble, m * (slowest + others))
    # Micro-batches, recomputation and schedules make no difference to what happens once a step.
    first, which = kinds_of([c.data, c.tensor, c.pipeline, c.context, c.expert, c.placement])
    some = c.take(first)
    gradients, once = (part[which] for part in _gradients(cluster, graph, some, software, algorithm, traffic))
    window = each.backward.max(axis=0)
    hidden = _beside(cluster, window, gradients) - window if software.overlaps else gradients
    exposed = hidden + once + _straggle(cluster, c)
    optimizer = _optimizer(cluster, graph, some, software)[which]
    seconds = body + bubble + exposed + optimizer
    seconds = seconds * cluster.factor
    wait = np.zeros_like(seconds)
    if cluster.loader is not None:
        nodes = np.maximum(1, c.data * c.tensor * c.pipeline * c.context // cluster.node_size)
        wait = np.maximum(0.0, graph.batch / (cluster.loader * nodes) - seconds)
    factor = cluster.factor
    return StepTime(
        total=seconds + wait,
        compute=(body - m * (exchanged + waiting)) * factor,
        exchange=m * exchanged * factor,
        host=m * waiting * factor,
        bubble=bubble * factor,
        gradients=exposed * factor,
        optimizer=optimizer * factor,
        loader=wait,
    )


def _straggle(cluster: Cluster, c: Candidates) -> Floats:
    """Return the seconds for which all nodes wait for the slowest."""
    nodes = np.maximum(1.0, c.data * c.tensor * c.pipeline * c.context / cluster.node_size)
    return cluster.network.straggle * np.log2(nodes)


def _bubble(c: Candidates, slowest: Floats, others: Floats) -> Floats:
    """Return the seconds in which the slowest stage waits for others.

    Args:
        others: seconds of one micro-batch on all other stages together.
    """
    share = np.select([c.schedule == 2, c.schedule == 3], [1 / c.chunks, np.full(len(c), 1 / 3)], 1.0)
    short = np.where(c.schedule == 3, np.maximum(0, c.pipeline - c.micro_batches), 0)
    usual = (others + short * slowest) * share
    left = c.micro_batches % c.pipeline
    more = np.where(
        (c.chunks > 1) & (left > 0), (c.chunks - 1) * (c.pipeline - left) * slowest / c.chunks, 0.0
    )
    return np.where(c.pipeline > 1, usual + more, 0.0)


def _filled(cluster: Cluster, c: Candidates, body: Floats, bubble: Floats, work: Floats) -> Floats:
    """Return the bubble of ranks that share cores.

    A rank that waits leaves its core to the others.

    A step takes the work of all stages on all cores, or the critical path at the speed of a rank by itself.

    Args:
        work: seconds of all stages for all micro-batches, each as long as with all ranks at work.
    """
    alone = (body + bubble) / np.minimum(cluster.crowd, c.pipeline)
    return np.maximum(work / c.pipeline, alone) - body


def _host_seconds(
    cluster: Cluster, block: ModelBlock, c: Candidates, software: Software, shares: RankShare
) -> Floats:
    """Return the host's seconds to start a block's operations for one micro-batch."""
    forward = operations(block, software, shares) + block.exchanges * (c.tensor > 1)
    repeated = _pieces_again(c, software)
    if block.repeated:
        light = operations(_recomputed(block, software), software, shares)
        repeated = repeated + np.select(
            [c.recompute == 1, c.recompute == 2], [light / np.maximum(forward, 1), np.ones(len(c))], 0.0
        )
    return forward * (2 + repeated) * cluster.slowest.host


def _block(
    cluster: Cluster,
    graph: CostGraph,
    block: ModelBlock,
    c: Candidates,
    software: Software,
    shares: RankShare,
) -> tuple[Floats, Floats, Floats]:
    """Return a block's forward, backward and communication seconds. `zero3` gathers during its compute."""
    forward, backward = block_seconds(cluster.slowest, software, block, shares)
    again = _again(cluster, block, c, software, shares, forward)
    again = again + _pieces_again(c, software) * forward
    pieces = software.pieces_again * (c.micro_batches > 1) * (c.pipeline == 1)
    exchange, last = _exchange(cluster, graph, block, c, software, shares)
    full = (c.recompute == 2) * (exchange - software.stops_early * last) + pieces * exchange
    gather = _gather(cluster, block, c, software)
    ring = _ring(cluster, block, c, software, shares)
    # Processors of one host map the same memory, and copy no parameters.
    copies = ~((cluster.backend == "gloo") & (c.data * c.context * c.tensor <= cluster.node_size))
    there = _beside(cluster, forward, copies * gather + ring)
    # Backward passes keys and values on again, and their gradients with them.
    back = _beside(
        cluster, backward + again, (1 + copies * (1 + pieces)) * gather + (2 + (c.recompute == 2)) * ring
    )
    behind = exchange + software.gathers_again * last * block.exchanges
    behind = behind + _keys(cluster, block, c, software, shares)[1]
    total_forward = there + exchange
    total_backward = back + behind + full
    hidden = there - forward + back - backward - again
    return total_forward, total_backward, exchange + behind + full + hidden


def _again(
    cluster: Cluster, block: ModelBlock, c: Candidates, software: Software, shares: RankShare, forward: Floats
) -> Floats:
    """Return the seconds that recomputation adds to backward; 0 outside repeated blocks."""
    if not block.repeated:
        return np.zeros_like(forward)
    selective, _ = block_seconds(cluster.slowest, software, _recomputed(block, software), shares)
    whole = forward
    if software.stops_early and block.matmuls:
        end = ModelBlock(name="end", matmuls=(dataclasses.replace(block.matmuls[-1], count=1),))
        whole = forward - block_seconds(cluster.slowest, software, end, shares)[0]
    return np.choose(c.recompute, [np.zeros_like(forward), selective, whole])


def _recomputed(block: ModelBlock, software: Software) -> ModelBlock:
    """Return the part of a block that `recompute=selective` computes again."""
    if software.keeps_results:
        return dataclasses.replace(block, matmuls=(), attention=None)
    return dataclasses.replace(block, matmuls=(), moved_cut=0.0, moved_whole=0.0, kernels=0.0)


def _pieces_again(c: Candidates, software: Software) -> Floats:
    """Return how often forward runs again for each micro-batch without a pipeline.

    The graph of the last micro-batch still exists when backward begins.
    """
    pieces = software.pieces_again * (c.micro_batches > 1) * (c.pipeline == 1)
    return pieces * (1 - 1 / c.micro_batches)


def _exchange(
    cluster: Cluster,
    graph: CostGraph,
    block: ModelBlock,
    c: Candidates,
    software: Software,
    shares: RankShare,
) -> tuple[Floats, Floats]:
    """Return the seconds of tensor, context and expert parallelism in a block's forward.

    The second value is the part after its last product.
    """
    size = block.output * shares.samples * software.itemsize / shares.context
    one = np.ones_like(c.tensor)
    if software.sequence_parallel:
        halves = [collective_seconds(cluster, each, size, c.tensor, one) for each in _HALVES]
        tensor, last = halves[0] + halves[1], halves[1]
    else:
        tensor = last = collective_seconds(cluster, "all_reduce", size, c.tensor, one)
    context = _keys(cluster, block, c, software, shares)[0]
    routed = np.zeros_like(size)
    if block.routed:
        sent = block.routed * shares.samples * software.itemsize / shares.context
        routed = 2 * collective_seconds(cluster, "alltoall", sent, c.expert, c.tensor)
    return tensor * block.exchanges + context + routed, last * (block.exchanges > 0)


def _keys(
    cluster: Cluster, block: ModelBlock, c: Candidates, software: Software, shares: RankShare
) -> tuple[Floats, Floats]:
    """Return the seconds of gathering keys and values in forward and in backward."""
    if block.attention is None:
        return np.zeros(len(c)), np.zeros(len(c))
    size = gathered_bytes(block.attention, c, software, shares.samples)
    seconds = np.where(size > 0, collective_seconds(cluster, "all_gather", size, c.context, c.tensor), 0.0)
    return seconds, seconds * gathered_again(block.attention, software, shares.samples)


def _ring(
    cluster: Cluster, block: ModelBlock, c: Candidates, software: Software, shares: RankShare
) -> Floats:
    """Return the seconds of one round of all keys and values through a ring."""
    if block.attention is None:
        return np.zeros(len(c))
    round_it = goes_round(block.attention, c, software, shares.samples)
    heads = shares.tensor if block.attention.divided else 1
    share = block.attention.keys * shares.samples * software.itemsize / (heads * shares.context)
    return np.where(round_it, (c.context - 1) * send_seconds(cluster, share, c.tensor), 0.0)


def _gather(cluster: Cluster, block: ModelBlock, c: Candidates, software: Software) -> Floats:
    """Return the seconds to gather a block's parameters once under `zero3`.

    `central` broadcasts them in the same time, and gradients are scattered in the same time.
    """
    if not np.any(c.placement >= 3):
        return np.zeros(len(c))
    ranks = c.data * c.context
    item = software.wire_parameter

    def seconds(numbers: Floats, group: Ints, stride: Ints) -> Floats:
        return collective_seconds(cluster, "all_gather", numbers * item, group, stride)

    found = seconds(block.parameters_cut / c.tensor + block.parameters_whole, ranks, c.tensor)
    if block.parameters_routed:
        own = block.parameters_routed / (c.tensor * c.expert)
        found = found + seconds(own, ranks // c.expert, c.tensor * c.expert)
    return np.where(c.placement >= 3, found, 0.0)


def _gradients(
    cluster: Cluster,
    graph: CostGraph,
    c: Candidates,
    software: Software,
    algorithm: str,
    traffic: PlanTraffic,
) -> tuple[Floats, Floats]:
    """Return the seconds of gradient traffic: hideable by backward, and after the update."""
    ends = [stage_parameters(graph, c, stage) for stage in (np.zeros_like(c.pipeline), c.pipeline - 1)]
    dense, routed = (np.maximum(*both) for both in zip(*ends, strict=True))
    numbers = dense + routed
    ranks = c.data * c.context
    size = numbers * software.wire_gradient * traffic.share
    none = np.zeros_like(size)
    if traffic.servers:
        link = cluster.network
        moved = 2 * size * ranks / (traffic.servers * link.usual.beta * link.nics)
        return (moved + 2 * link.usual.alpha) / traffic.every * traffic.waits, none
    if traffic.peers:
        ranks = np.minimum(ranks, traffic.peers)

    def collective(operation: str, wire: float, bucket: float) -> Floats:
        groups = [(dense, ranks, c.tensor)]
        if graph.block.parameters_routed:
            groups.append((routed, np.maximum(1, ranks // c.expert), c.tensor * c.expert))
        seconds = none
        for some, group, stride in groups:
            moved = some * wire
            often = np.maximum(1, np.ceil(moved / bucket))
            seconds = seconds + often * collective_seconds(
                cluster, operation, moved / often, group, stride, algorithm
            )
        return seconds

    wire = software.wire_gradient * traffic.share
    summed = collective("all_reduce", wire, software.bucket)
    scattered = collective("reduce_scatter", wire, software.bucket)
    shared = collective("all_gather", software.wire_parameter, float("inf"))
    device = cluster.slowest
    coding = traffic.passes * numbers * software.gradient / (device.copy_efficiency * device.bandwidth)
    hideable = np.choose(c.placement, [summed, scattered, scattered, none, scattered])
    once = np.choose(c.placement, [none, shared, shared, none, none])
    return (hideable * traffic.waits + coding) / traffic.every, once


def _optimizer(cluster: Cluster, graph: CostGraph, c: Candidates, software: Software) -> Floats:
    """Return the seconds of the update, from the bytes read and written."""
    dense, routed = stage_parameters(graph, c, np.zeros_like(c.pipeline))
    divided = (c.placement >= 1) & (c.placement <= 3)
    ranks = c.data * c.context
    numbers = dense / np.where(divided, ranks, 1) + routed / np.where(divided, ranks / c.expert, 1)
    own = 2 * software.optimizer + 2 * software.parameter + software.gradient
    moved = numbers * (software.update_moves or own)
    device = cluster.slowest
    return moved / (device.copy_efficiency * device.bandwidth)


def flops_share(
    cluster: Cluster, graph: CostGraph, software: Software, seconds: Floats, ranks: Floats
) -> Floats:
    """Return MFU: the step's FLOPs over the devices' peak in that time.

    Recomputed FLOPs do not count.
    """
    return graph.step_flops / (seconds * ranks * peak_of(cluster.slowest, software.precision))
