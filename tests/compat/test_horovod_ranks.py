"""`horovod.torch` on ranks: every collective, in whatever order ranks submit, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from compat.horovod_ranks import started
from ronde.compat.engine import HorovodInternalError
from ronde.compat.horovod import basics as hvd
from ronde.compat.horovod import differentiable as calls
from ronde.compat.horovod import operations as ops
from ronde.compat.horovod.compression import Compression
from ronde.compat.horovod.elastic import ElasticSampler, TorchState
from ronde.compat.horovod.elastic import run as elastic_run
from ronde.compat.horovod.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ronde.compat.horovod.operations import Adasum, Average, Max, Min, Product, Sum, synchronize
from ronde.compat.horovod.optimizer import DistributedOptimizer
from ronde.compat.horovod.sync_batch_norm import SyncBatchNorm
from ronde.testing.run_ranks import RankPool

D = torch.float64
On = Callable[..., list[Any]]


def reductions() -> None:
    rank, ranks = hvd.rank(), hvd.size()
    for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32):
        given = torch.arange(1, 7, dtype=kind).view(2, 3) + rank
        all_of_them = torch.stack([torch.arange(1, 7, dtype=kind).view(2, 3) + each for each in range(ranks)])
        expected = {
            Sum: all_of_them.sum(0).to(kind),
            Min: all_of_them.amin(0),
            Max: all_of_them.amax(0),
            Product: all_of_them.prod(0).to(kind),
        }
        for op, wanted in expected.items():
            assert torch.equal(calls.allreduce(given, op=op), wanted)
    assert calls.allreduce(torch.tensor([rank, 5])).tolist() == [1, 5]  # whole numbers are cut off
    assert calls.allreduce(torch.tensor([-rank, -5]), op=Average).tolist() == [-1, -5]
    scaled = calls.allreduce(torch.ones(2), op=Sum, prescale_factor=2.0, postscale_factor=0.5)
    assert scaled.tolist() == [ranks, ranks]
    assert calls.allreduce(torch.ones(3), average=False).tolist() == [ranks] * 3
    half = calls.allreduce(torch.full((3,), 1.5), compression=Compression.fp16)
    assert (half.dtype, half.tolist()) == (torch.float32, [1.5] * 3)
    given = torch.ones(4, 4)
    columns = given[:, ::2]
    assert calls.allreduce_(columns, op=Sum) is columns
    assert given[0].tolist() == [ranks, 1, ranks, 1]
    assert calls.allreduce(torch.tensor(2.0)).shape == ()
    assert calls.allreduce(torch.empty(0)).shape == (0,)


def others() -> None:
    rank, ranks = hvd.rank(), hvd.size()
    gathered = calls.allgather(torch.full((rank + 1, 2), rank))
    assert gathered[:, 0].tolist() == [each for each in range(ranks) for _ in range(each + 1)]
    assert calls.broadcast(torch.tensor([rank]), 1).tolist() == [1]
    target = torch.full((3,), float(rank))
    assert calls.broadcast_(target, 2) is target
    assert target.tolist() == [2.0] * 3
    sent = torch.arange(ranks * 2).view(-1, 1) + 10 * rank
    received = calls.alltoall(sent)
    assert received.flatten().tolist() == [10 * e + 2 * rank + k for e in range(ranks) for k in (0, 1)]
    splits = torch.tensor([each if each != rank else 0 for each in range(ranks)], dtype=torch.int32)
    rows, counts = calls.alltoall(torch.full((int(splits.sum()), 1), rank), splits)
    assert (counts.dtype, counts.tolist()) == (torch.int32, [0 if e == rank else rank for e in range(ranks)])
    assert rows.flatten().tolist() == [each for each in range(ranks) if each != rank for _ in range(rank)]
    part = calls.reducescatter(torch.arange(8.0).view(4, 2), op=Sum)
    assert part.shape[0] == (2 if rank == 0 else 1)
    assert part[0, 0].item() == ranks * 2 * (0 if rank == 0 else rank + 1)
    one, two = calls.grouped_allgather([torch.tensor([rank]), torch.ones(1, 2)])
    assert (one.tolist(), two.shape) == ([*range(ranks)], (ranks, 2))
    assert allgather_object({"rank": rank}) == [{"rank": each} for each in range(ranks)]
    assert broadcast_object([rank], 1, name="thing") == [1]
    place = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (5,))
    finish = ops.sparse_allreduce_async(place, "sparse", Sum)
    assert finish().to_dense().tolist() == [1, 1, 1, 6, 0]


def orders() -> None:
    """Each rank in its own order, with some in groups."""
    rank, ranks = hvd.rank(), hvd.size()
    names = [f"t{number}" for number in range(30)]
    mixed = names[rank * 7 :] + names[: rank * 7]
    handles = {n: ops.allreduce_async(torch.full((int(n[1:]) + 1,), 1.0), name=n, op=Sum) for n in mixed}
    several = [torch.full((3,), 1.0 * rank), torch.full((2, 2), 2.0)]
    grouped = ops.grouped_allreduce_async(several, name="g", op=Average)
    for name in reversed(names):
        assert synchronize(handles[name]).tolist() == [ranks] * (int(name[1:]) + 1)
    first, second = synchronize(grouped)
    assert (first.tolist(), second.tolist()) == ([1.0] * 3, [[2.0, 2.0]] * 2)
    assert ops.poll(grouped) is True
    assert synchronize(grouped) is None
    ops.barrier()


def held() -> None:
    """Tensors wait for others: until there are many bytes, or somebody waits, or backward has ended."""
    engine, rank = hvd.engine(), hvd.rank()
    options = Sum, 1.0, 1.0, hvd.global_process_set
    tensors = [torch.full((3,), float(rank)) for _ in range(3)]
    handles = [ops.allreduce_held_(each, f"held.{place}", *options) for place, each in enumerate(tensors)]
    assert engine._held
    assert synchronize(handles[1]).tolist() == [3.0] * 3
    assert not engine._held
    assert all(synchronize(handle).tolist() == [3.0] * 3 for handle in (handles[0], handles[2]))
    polled = ops.allreduce_held_(torch.ones(1), "polled", *options)
    while not ops.poll(polled):
        pass
    assert synchronize(polled).tolist() == [3]
    many = ops.allreduce_held_(torch.ones(1 << 20), "many", *options)
    assert not engine._held
    first, last = (
        ops.allreduce_held_(torch.ones(2), "first", *options),
        ops.allreduce_async(torch.ones(2), op=Sum),
    )
    assert not engine._held
    assert synchronize(last).tolist() == synchronize(first).tolist() == [3, 3]
    assert synchronize(many).sum() == 3 << 20
    messages: list[int] = []
    send, engine._send = engine._send, lambda entries: (messages.append(len(entries)), send(entries))[1]
    model = model_of(0)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    loss_of(model, 0, 0, rank).backward()
    assert messages == [len(list(model.parameters()))]
    optimizer.step()
    assert len(messages) == 1
    broken = next(iter(model.children()))
    hook = broken.weight.register_post_accumulate_grad_hook(_stumble)
    with pytest.raises(ArithmeticError):
        loss_of(model, 0, 0, rank).backward()
    hook.remove()
    optimizer.synchronize()
    optimizer.zero_grad()
    loss_of(model, 0, 0, rank).backward()
    assert not engine._held
    optimizer.step()
    engine._send = send


def _stumble(_: torch.Tensor) -> None:
    raise ArithmeticError


def mistakes() -> None:
    rank, ranks = hvd.rank(), hvd.size()
    with pytest.raises(HorovodInternalError, match=r"'allreduce.w': rank 0 says shape \[3\], rank 1 says"):
        calls.allreduce(torch.ones(3 + rank), name="w")
    with pytest.raises(HorovodInternalError, match="rank 0 says dtype float32, rank 1 says dtype float64"):
        calls.allreduce(torch.ones(3, dtype=torch.float32 if rank == 0 else D), name="w")
    with pytest.raises(HorovodInternalError, match="says root"):
        calls.broadcast(torch.ones(3), rank % 2, name="b")
    with pytest.raises(ValueError, match="give only op"):
        calls.allreduce(torch.ones(3), average=True, op=Sum)
    with pytest.raises(ValueError, match="add up to the tensor's 3 rows"):
        calls.alltoall(torch.ones(3, 1), [1] * (ranks - 1) + [9])
    with pytest.raises(ValueError, match="needs splits"):
        calls.alltoall(torch.ones(ranks + 1, 1))
    with pytest.raises(ValueError, match="no rows"):
        calls.allgather(torch.tensor(1.0))
    with pytest.raises(ValueError, match="is not a member"):
        calls.broadcast(torch.ones(1), 7)
    with pytest.raises(ValueError, match="may not change"):
        hvd.add_process_set([0])
    if ranks == 3:
        with pytest.raises(NotImplementedError, match="3 is not a power of 2"):
            calls.allreduce(torch.ones(1), op=Adasum)
    first = ops.allreduce_async(torch.ones(1), name=f"only {rank}")
    with pytest.raises(ValueError, match="its handle has not been waited for"):
        ops.allreduce_async(torch.ones(1), name=f"only {rank}")
    ops.barrier()  # until here nobody else has submitted it
    theirs = [
        ops.allreduce_async(torch.ones(1), name=f"only {other}") for other in range(ranks) if other != rank
    ]
    for handle in (first, *theirs):
        synchronize(handle)
    polled = ops.allreduce_async(torch.ones(1), name="polled", op=Sum)
    with pytest.raises(ValueError, match="its handle has not been waited for"):
        ops.allreduce_async(torch.ones(1), name="polled", op=Sum)
    while not ops.poll(polled):
        pass
    assert calls.allreduce(torch.ones(2), name="polled", op=Sum).tolist() == [ranks] * 2
    assert synchronize(polled).item() == ranks


def uneven() -> int:
    """Rank r has r + 1 batches."""
    rank = hvd.rank()
    for batch in range(rank + 1):
        # The sum has what is there; the mean has the full divisor.
        there = hvd.size() - batch
        assert calls.allreduce(torch.ones(2), op=Sum).tolist() == [there, there]
        assert calls.allreduce(torch.ones(1)).item() == pytest.approx(there / hvd.size())
    last = ops.join()
    assert calls.allreduce(torch.ones(1), op=Sum).item() == hvd.size()  # automatic names are the same again
    return last


def sets() -> None:
    rank = hvd.rank()
    outer = hvd._state.sets[0]
    assert (outer.process_set_id, outer.size(), outer.included()) == (1, 2, rank != 1)
    if rank != 1:
        assert calls.allreduce(torch.tensor([rank]), op=Sum, process_set=outer).item() == 2
        assert calls.broadcast(torch.tensor([rank]), 2, process_set=outer).item() == 2
        assert outer.rank() == (0 if rank == 0 else 1)
    else:
        with pytest.raises(ValueError, match="rank 1 is not a member"):
            calls.allreduce(torch.ones(1), process_set=outer)
    for options in ({}, {"groups": 1}):
        trains_within(outer, [0, 2] if rank != 1 else [1], options)


def trains_within(process_set: hvd.ProcessSet, members: list[int], options: dict[str, Any]) -> None:
    """Members have the mean of their gradients; a rank outside of the set has its own."""
    model, expected = model_of(0), model_of(0)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        process_set=process_set,
        **options,
    )
    plain = torch.optim.SGD(expected.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        plain.zero_grad()
        loss_of(model, step, 0, hvd.rank()).backward()
        for member in members:
            (loss_of(expected, step, 0, member) / len(members)).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        plain.step()
    torch.testing.assert_close(list(model.parameters()), list(expected.parameters()), rtol=1e-12, atol=1e-12)


def changing_sets() -> None:
    rank = hvd.rank()
    added = hvd.add_process_set([1, 2])
    if rank:
        assert calls.allgather(torch.tensor([rank]), process_set=added).tolist() == [1, 2]
    with pytest.raises(ValueError, match="exists already"):
        hvd.add_process_set([2, 1])
    assert hvd.remove_process_set(added)
    assert added.process_set_id is None
    assert not hvd.remove_process_set(hvd.global_process_set)


def gradients() -> None:
    rank, ranks = hvd.rank(), hvd.size()
    x = torch.full((2,), 1.0 + rank, dtype=D, requires_grad=True)
    calls.allreduce(x, op=Sum).mul(rank + 1).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [sum(range(1, ranks + 1))] * 2
    y = torch.ones(rank + 1, 1, dtype=D, requires_grad=True)
    calls.allgather(y).mul(rank).sum().backward()
    assert y.grad is not None
    assert y.grad.flatten().tolist() == [sum(range(ranks)) / ranks] * (rank + 1)
    z = torch.ones(2, dtype=D, requires_grad=True)
    calls.broadcast(z, 1).mul(rank).sum().backward()
    assert z.grad is not None
    assert z.grad.tolist() == [sum(range(ranks)) / ranks if rank == 1 else 0] * 2
    splits = [1] * ranks
    w = torch.ones(ranks, 1, dtype=D, requires_grad=True)
    calls.alltoall(w, splits)[0].mul(rank).sum().backward()
    assert w.grad is not None
    assert w.grad.flatten().tolist() == [*range(ranks)]
    v = torch.ones(ranks, dtype=D, requires_grad=True)
    calls.reducescatter(v, op=Sum).mul(rank).sum().backward()
    assert v.grad is not None
    assert v.grad.tolist() == [ranks * each for each in range(ranks)]


def model_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(D)


def one_device(ranks: int, passes: int) -> list[torch.Tensor]:
    model = model_of(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        for each in range(passes):
            for rank in range(ranks):
                (loss_of(model, step, each, rank) / ranks).backward()
        optimizer.step()
    return [each.detach() for each in model.parameters()]


def loss_of(model: nn.Module, step: int, part: int, rank: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * step + 10 * part + rank)
    return model(torch.randn(4, 5, generator=draw, dtype=D)).square().mean()


def distributed(passes: int, options: dict[str, Any]) -> list[torch.Tensor]:
    rank = hvd.rank()
    model = model_of(rank)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    broadcast_parameters(model.state_dict(), root_rank=0)
    broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=passes, **options
    )
    assert isinstance(optimizer, torch.optim.SGD)
    for step in range(4):
        optimizer.zero_grad()
        for part in range(passes):
            loss_of(model, step, part, rank).backward()
        if step == 1:
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


def scaled() -> None:
    """Rank 1's gradients overflow in the second step, which no rank makes."""
    model, expected = model_of(0), model_of(0)
    plain = torch.optim.SGD(expected.parameters(), lr=0.1)
    optimizer: Any = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(3):
        optimizer.zero_grad()
        overflow = float("inf") if step == 1 and hvd.rank() == 1 else 1.0
        scaler.scale(loss_of(model, step, 0, hvd.rank()) * overflow).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        if step != 1:
            plain.zero_grad()
            for rank in range(hvd.size()):
                (loss_of(expected, step, 0, rank) / hvd.size()).backward()
            plain.step()
    assert scaler.get_scale() == 32.0
    torch.testing.assert_close(list(model.parameters()), list(expected.parameters()), rtol=1e-12, atol=1e-12)


def misuse() -> None:
    model = model_of(0)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="pairs of name and parameter"):
        DistributedOptimizer(plain, named_parameters=model.parameters())
    with pytest.raises(ValueError, match="a name twice: a"):
        DistributedOptimizer(plain, named_parameters=[("a", each) for each in model.parameters()])
    with pytest.raises(ValueError, match="lacks 3 of the optimizer's parameters"):
        DistributedOptimizer(plain, named_parameters=list(model.named_parameters())[:1])
    with pytest.raises(ValueError, match="op=Average only"):
        DistributedOptimizer(plain, op=Sum, gradient_predivide_factor=2.0)
    optimizer = DistributedOptimizer(plain, named_parameters=model.named_parameters())
    weight = next(iter(model.parameters()))
    assert optimizer._parameter_names[weight] == "0.weight"
    assert len(optimizer._parameter_names) == 4
    without_names = DistributedOptimizer(torch.optim.SGD([{"params": [weight]}], lr=0.1), op=Adasum)
    assert without_names._parameter_names == {weight: "allreduce.noname.0.0"}
    loss_of(model, 0, 0, 0).backward()
    optimizer.load_state_dict(optimizer.state_dict())  # gives the gradients up that are on their way
    optimizer.zero_grad()
    ops.barrier()
    loss_of(model, 0, 0, 0).backward()
    with pytest.raises(AssertionError, match=r"zero_grad\(\) was called while"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="more backwards than backward_passes_per_step=1"):
        loss_of(model, 0, 0, 0).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()
    unused = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    lacking = DistributedOptimizer(torch.optim.SGD(unused, lr=1.0))
    (unused[0] * (hvd.rank() + 1)).sum().backward()
    lacking.step()
    assert unused[0].tolist() == [1 - (hvd.size() + 1) / 2] * 2
    assert unused[1].tolist() == [1, 1]


def sparse(dense: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    table = nn.Embedding(10, 2, sparse=True)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=dense
    )
    table(torch.tensor([hvd.rank(), 5])).sum().backward()
    optimizer.step()
    return [table.weight.detach().clone()]


def by_adasum() -> list[torch.Tensor]:
    model = model_of(0)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=Adasum)
    loss_of(model, 0, 0, 0).backward()  # the same on both: the mean of equal updates is the update
    optimizer.step()
    first = torch.tensor([1.0, 0.0] if hvd.rank() == 0 else [0.0, 1.0])
    assert calls.allreduce(first, op=Adasum).tolist() == [1.0, 1.0]  # orthogonal: added
    return [each.detach().clone() for each in model.parameters()]


def batch_norm() -> list[torch.Tensor]:
    rank = hvd.rank()
    torch.manual_seed(0)
    x = torch.randn(6, 3, 4, dtype=D)[2 * rank : 2 * rank + 2].clone().requires_grad_()
    layer = SyncBatchNorm(3).to(D)
    layer(x).pow(3).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is not None
    weight = calls.allreduce(layer.weight.grad, op=Sum)
    layer.eval()
    told = layer(torch.ones(1, 3, dtype=D)).detach()
    return [calls.allgather(x.grad), weight, layer.running_mean, layer.running_var, told]  # type: ignore[list-item]


def elastic() -> list[int]:
    rank = hvd.rank()
    model = model_of(rank)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters()
    )
    sampler = ElasticSampler(range(10), seed=3)
    state = TorchState(model=model, optimizer=optimizer, sampler=sampler, batch=0)
    reset: list[int] = []
    state.register_reset_callbacks([lambda: reset.append(state.batch)])

    @elastic_run
    def train(state: Any) -> list[int]:
        expected = next(iter(model_of(0).parameters()))
        assert torch.equal(next(iter(model.parameters())), expected) == (state.batch == 0)
        while state.batch < 4:
            optimizer.zero_grad()
            loss_of(model, 0, 0, 0).backward()
            if state.batch == 3 and not reset:
                raise HorovodInternalError("as if a rank were gone while gradients are reduced")
            optimizer.synchronize()
            for each in model.parameters():
                each.data.add_(1.0)
            state.batch += 1
            if state.batch == 2:
                state.commit()
        return reset

    found = train(state)
    assert next(iter(model.parameters())).sub(next(iter(model_of(0).parameters()))).mean().item() == (
        pytest.approx(4.0)
    )
    seen = {index for each in allgather_object(list(sampler)[:2]) for index in each}
    sampler.record_batch(0, 2)
    assert sampler.processed_num == 6  # those of other ranks too: they may be lost
    state.sync()
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 6}
    assert (len(seen), len(sampler)) == (6, 2)
    assert seen | set(sampler.remaining_indices) == set(range(10))
    assert set().union(*allgather_object(list(sampler))) == set(sampler.remaining_indices)
    sampler.set_epoch(1)
    assert (sampler.processed_num, len(sampler)) == (0, 4)
    return found


@pytest.mark.parametrize("work", [reductions, others, orders, held, mistakes, gradients, scaled, misuse])
def test_on_three_ranks(three: On, work: Callable[[], None]) -> None:
    three(work)


def test_a_rank_without_data_joins(three: On) -> None:
    assert three(uneven) == [2, 2, 2]


def set_from_the_beginning(rank: Any) -> None:
    started(rank, sets, process_sets=[hvd.ProcessSet([2, 0])])


def set_added_later(rank: Any) -> None:
    started(rank, changing_sets, process_sets="dynamic")


def test_some_ranks_exchange_among_themselves() -> None:
    pool = RankPool(3, timeout=60)
    pool.run(set_from_the_beginning)
    pool.run(set_added_later)
    pool.close()


@pytest.mark.parametrize(
    ("passes", "options"),
    [
        (1, {}),
        (2, {"groups": 2}),
        (1, {"gradient_predivide_factor": 3.0}),
        pytest.param(3, {"num_groups": 1}, marks=pytest.mark.soak),
    ],
)
@pytest.mark.filterwarnings("ignore:groups=N and num_groups mean the same; give one of them")
def test_an_optimizer_trains_as_on_all_batches(three: On, passes: int, options: dict[str, Any]) -> None:
    expected = one_device(3, passes)
    for found in three(distributed, passes, options):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_sparse_gradients(two: On) -> None:
    as_dense, as_they_are = two(sparse, True), two(sparse, False)
    torch.manual_seed(0)
    expected = nn.Embedding(10, 2).weight.detach()
    expected[[0, 1]] -= 0.5
    expected[5] -= 1.0
    for found in (*as_dense, *as_they_are):
        torch.testing.assert_close(found[0], expected)


def test_adasum(two: On) -> None:
    model = model_of(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model, 0, 0, 0).backward()
    optimizer.step()
    for found in two(by_adasum):
        torch.testing.assert_close(found, [each.detach() for each in model.parameters()])


def test_batch_norm_has_the_statistics_of_all_rows(three: On) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3, 4, dtype=D, requires_grad=True)
    layer = nn.BatchNorm1d(3).to(D)
    layer(x).pow(3).sum().backward()
    layer.eval()
    expected = [
        x.grad, layer.weight.grad, layer.running_mean, layer.running_var,
        layer(torch.ones(1, 3, 1, dtype=D)).detach()[..., 0],
    ]  # fmt: skip
    for found in three(batch_norm):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_a_failed_training_goes_on_from_what_was_committed(three: On) -> None:
    assert three(elastic) == [[2], [2], [2]]
