"""torch's own layers over shared memory give what they give over Gloo, and all their calls arrive."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

_WORLDS = itertools.count()


@contextmanager
def world(rank: Any, backend: str) -> Iterator[Any]:
    """torch's default group of this backend; its calls are counted where it is ours."""
    from ronde.comm.torch_group import registered

    store = dist.FileStore(os.path.join(rank.directory, f"world-{next(_WORLDS)}"), rank.world_size)
    with registered("ronde"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group(backend, store=store, rank=rank.rank, world_size=rank.world_size)
        try:
            yield dist.group.WORLD
        finally:
            dist.destroy_process_group()


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(step: int, rank: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 8, generator=generator), torch.randn(8, 4, generator=generator)


def train(net: nn.Module, rank: int) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses: list[float] = []
    for step in range(3):
        inputs, targets = batch(step, rank)
        loss = nn.functional.mse_loss(net(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def data_parallel(rank: Any) -> list[float]:
    return train(nn.parallel.DistributedDataParallel(model(rank.rank)), rank.rank)


def sparse_data_parallel(rank: Any) -> list[float]:
    """Each rank looks up other rows: gradients are sparse, of different numbers of rows."""
    torch.manual_seed(0)
    table = nn.EmbeddingBag(20, 3, sparse=True)
    net = nn.parallel.DistributedDataParallel(table)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(2):
        rows = torch.arange(3 + 2 * rank.rank).unsqueeze(0) + step + rank.rank
        net(rows).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return table.weight.flatten().tolist()


def fully_sharded(rank: Any) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (rank.world_size,))
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    losses = train(net, rank.rank)
    shards: Any = net.parameters()
    whole = [each.full_tensor().sum().item() for each in shards]
    return losses + whole


def tensor_parallel(rank: Any) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (rank.world_size,))
    net = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    losses = train(net, 0)
    table = distribute_tensor(torch.arange(12.0).view(4, 3), mesh, [Shard(0)])
    columns = table.redistribute(mesh, [Shard(1)])
    assert isinstance(columns, DTensor)
    total: Any = table.sum()
    whole = columns.redistribute(mesh, [Replicate()]).to_local()
    return [
        *losses,
        *whole.flatten().tolist(),
        columns.to_local().sum().item(),
        total.full_tensor().item(),
    ]


def pipelined(rank: Any) -> list[float]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    layers = list(model().children())
    cut = [layers[:2], layers[2:]][rank.rank]
    stage = PipelineStage(nn.Sequential(*cut), rank.rank, rank.world_size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
    results: list[float] = []
    for step in range(3):
        inputs, targets = batch(step)
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        if rank.rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=losses)
        optimizer.step()
        results += [each.item() for each in losses]
    return results + [each.sum().item() for each in stage.submod.parameters()]


def interleaved(rank: Any) -> list[float]:
    """Two stages on each rank: messages cross in both directions."""
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    torch.manual_seed(0)
    layers = [nn.Linear(8, 8) for _ in range(4)]
    places = (rank.rank, rank.rank + 2)
    stages: list[Any] = [PipelineStage(layers[each], each, 4, torch.device("cpu")) for each in places]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    inputs, losses = batch(0)[0], []
    if rank.rank == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=inputs.roll(1, 1), losses=losses)
    gradients = [each.grad.sum().item() for stage in stages for each in stage.submod.parameters()]
    return [each.item() for each in losses] + gradients


def under_modes(rank: Any) -> list[float]:
    """A message is received alike under modes of the script; none stays with what was allocated in it."""
    got = torch.zeros(2)
    for turn, mode in enumerate((torch.inference_mode(), torch.enable_grad(), torch.device("meta"))):
        mine = torch.full((2,), float(turn + rank.rank))
        with mode:
            work = dist.isend(mine, 1 - rank.rank)
            dist.recv(got, 1 - rank.rank)
            assert work is not None
            work.wait()
    return got.tolist()


def one_by_one(rank: Any) -> list[Any]:
    """Every call of torch.distributed once, with what Gloo can do as well."""
    me, size = rank.rank, rank.world_size
    seen: list[Any] = []

    def see(*tensors: torch.Tensor) -> None:
        seen.extend(each.tolist() for each in tensors)

    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8):
        mine = torch.arange(6).to(dtype).view(2, 3) + me
        total = mine.clone()
        dist.all_reduce(total)
        crosswise = mine.t().clone().t()  # not contiguous
        dist.all_reduce(crosswise, op=dist.ReduceOp.MAX)
        parts = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(parts, mine)
        whole = torch.empty(2 * size, 3, dtype=dtype)
        work = dist.all_gather_into_tensor(whole, mine, async_op=True)
        assert work is not None
        work.wait()
        root = mine.clone()
        dist.broadcast(root, src=size - 1)
        reduced = mine.clone()
        dist.reduce(reduced, dst=0)
        see(total, crosswise, *parts, whole, root, *([reduced] if me == 0 else []))
    rows = torch.arange(2.0 * size) + 10 * me
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, rows)
    listed = torch.empty(2)
    dist.reduce_scatter(listed, list(rows.clone().chunk(size)))
    mixed = torch.empty(2 * size)
    dist.all_to_all_single(mixed, rows)
    uneven = torch.empty(size * (me + 1))
    sizes = [each + 1 for each in range(size)]
    dist.all_to_all_single(uneven, torch.arange(float(sum(sizes))) + me, [me + 1] * size, sizes)
    gathered = [torch.empty(2) for _ in range(size)] if me == 0 else None
    dist.gather(rows[:2].clone(), gathered, dst=0)
    scattered = torch.empty(2)
    dist.scatter(scattered, list(rows.clone().chunk(size)) if me == 1 else None, src=1)
    see(out, listed, mixed, uneven, *(gathered or []), scattered)
    return seen


def objects_and_messages(rank: Any) -> list[Any]:
    me, size = rank.rank, rank.world_size
    seen: list[Any] = []
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": me})
    told: list[Any] = [("from", me)]
    dist.broadcast_object_list(told, src=1)
    seen += [objects, told]
    dist.barrier()
    nxt, last = (me + 1) % size, (me - 1) % size
    got = torch.empty(3)
    works = [dist.isend(torch.full((3,), float(me)), nxt, tag=4), dist.irecv(got, last, tag=4)]
    for each in works:
        assert each is not None
        each.wait()
    seen.append(got.tolist())
    if me == 0:
        sources = [dist.recv(got) for _ in range(size - 1)]
        seen.append(sorted(sources))
    else:
        dist.send(torch.zeros(3), 0)
    half = dist.new_group([0, 1])
    if me < 2:
        pair = torch.tensor([me + 1])
        dist.all_reduce(pair, group=half)
        seen.append(pair.tolist())
    return seen


def beyond_gloo(rank: Any) -> list[Any]:
    """Uneven sizes, averages and types that Gloo does not carry."""
    me, size = rank.rank, rank.world_size
    seen: list[Any] = []
    mean = torch.tensor([1.0, 2.0]) + me
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    outs = [torch.empty(each + 1) for each in range(size)]
    dist.all_gather(outs, torch.full((me + 1,), float(me)))
    out = torch.empty(me + 1)
    dist.reduce_scatter(out, [torch.ones(each + 1) for each in range(size)])
    pieces = [torch.full((me + 1, 2), float(10 * me + to)) for to in range(size)]
    taken = [torch.empty(each + 1, 2) for each in range(size)]
    dist.all_to_all(taken, pieces)
    short = torch.tensor([3], dtype=torch.int16)
    dist.all_reduce(short)
    eights = [torch.empty(2).to(torch.float8_e4m3fn) for _ in range(size)]
    dist.all_gather(eights, torch.full((2,), float(me)).to(torch.float8_e4m3fn))
    with dist._coalescing_manager():  # pyright: ignore[reportAttributeAccessIssue]
        both = [torch.ones(2), torch.full((3,), 2.0)]
        for each in both:
            dist.all_reduce(each)
    group: Any = dist.group.WORLD
    part = group.split_group([me])
    alone = torch.tensor([7.0])
    part.allreduce([alone]).wait()
    part.shutdown()
    seen += [each.float().tolist() for each in (mean, *outs, out, *taken, short, *eights, *both, alone)]
    return seen


def functional(rank: Any) -> list[Any]:
    import torch.distributed._functional_collectives as funcol

    group: Any = dist.group.WORLD
    me, size = rank.rank, rank.world_size
    rows = torch.arange(4.0 * size).view(2 * size, 2) + me
    outs = [
        funcol.all_reduce(rows, "avg" if dist.get_backend() == "ronde" else "sum", group),
        funcol.all_gather_tensor(rows, 0, group),
        funcol.reduce_scatter_tensor(rows, "sum", 0, group),
        funcol.all_to_all_single(rows, None, None, group),
        funcol.broadcast(rows, 1, group),
        *funcol.all_reduce_coalesced([rows, rows + 1], "sum", group),
        *funcol.all_gather_into_tensor_coalesced([rows, rows[:1].clone()], group),
        *funcol.reduce_scatter_tensor_coalesced([rows, rows * 2], "sum", [0, 0], group),
    ]
    return [torch.as_tensor(each + 0).tolist() for each in outs[1:]]


def over(rank: Any, what: str, backend: str) -> tuple[Any, list[str]]:
    with world(rank, backend) as group:
        result = globals()[what](rank)
        return result, sorted(getattr(group, "calls", {}))


@pytest.mark.parametrize(
    ("what", "world_size"),
    [
        ("data_parallel", 2),
        ("data_parallel", 3),
        ("sparse_data_parallel", 2),
        ("fully_sharded", 2),
        ("tensor_parallel", 2),
        ("pipelined", 2),
        ("interleaved", 2),
        ("under_modes", 2),
        ("functional", 2),
        ("one_by_one", 2),
        ("objects_and_messages", 3),
        ("one_by_one", 3),
    ],
)
def test_the_numbers_are_those_of_gloo(ranks: Callable[..., list[Any]], what: str, world_size: int) -> None:
    theirs = [result for result, _ in ranks(world_size, over, what, "gloo")]
    ours = [result for result, _ in ranks(world_size, over, what, "ronde")]
    if what in ("functional", "one_by_one", "objects_and_messages"):
        assert ours == theirs
    else:
        assert [result for each in ours for result in each] == pytest.approx(
            [result for each in theirs for result in each], rel=1e-6
        )


# torch 2.13 asks for the names with "single", earlier ones for those that the methods had then; both are one.
@pytest.mark.parametrize(
    ("what", "calls"),
    [
        ("data_parallel", {"allgather", "allreduce", "broadcast"}),
        ("fully_sharded", {"all_gather_single", "reduce_scatter_single"}),
        ("tensor_parallel", {"all_gather_single_coalesced", "allreduce", "scatter"}),
        ("pipelined", {"send", "recv"}),
        (
            "functional",
            {
                "all_gather_single_coalesced",
                "all_to_all_single",
                "allreduce",
                "allreduce_coalesced",
                "broadcast",
                "reduce_scatter_single_coalesced",
            },
        ),
    ],
)
def test_the_calls_of_a_layer_arrive(ranks: Callable[..., list[Any]], what: str, calls: set[str]) -> None:
    for _, seen in ranks(2, over, what, "ronde"):
        assert calls <= set(seen)


def test_what_gloo_cannot_do(ranks: Callable[..., list[Any]]) -> None:
    (first, _), (second, _) = ranks(2, over, "beyond_gloo", "ronde")
    same = [[1.5, 2.5], [0.0], [1.0, 1.0]]
    shared = [[6.0], [0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [4.0, 4.0, 4.0], [7.0]]
    assert first == [*same, [2.0], [[0.0, 0.0]], [[10.0, 10.0]] * 2, *shared]
    assert second == [*same, [2.0, 2.0], [[1.0, 1.0]], [[11.0, 11.0]] * 2, *shared]


def left_alone(rank: Any) -> bool:
    """Nothing of it is known to torch once the group is gone."""
    with world(rank, "ronde"):
        pass
    return not hasattr(dist.Backend, "RONDE") and "ronde" not in dist.Backend.backend_list


def test_nothing_stays_registered(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, left_alone) == [True, True]
    assert not dist.is_initialized()
