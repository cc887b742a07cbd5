"""Inexact plans step by step: what each worker has equals a single process that runs the same algorithm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from ronde.comm.process_group import Comm
from ronde.comm.single_rank import SingleRank
from ronde.errors import UsageError
from ronde.parallel.servers.local_update import GeoUpdate, LocalUpdate, ServedParameters, _refuse_others
from ronde.server.transport.client import Client
from ronde.tensor.context import Context
from support.servers import RunningServers, serving

WORKERS = 3
ORDER = [0, 0, 1, 2, 0, 1, 1, 2, 2, 0, 2, 1, 0, 1, 2, 0, 0, 2]

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, lr_decay=0.01),
}


def model() -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double()
    net.register_parameter("scale", nn.Parameter(torch.ones((), dtype=torch.float64)))
    return net


def gradient(net: nn.Module, worker: int, step: int) -> None:
    """Of this worker's slice of this batch, accumulated as backward does."""
    generator = torch.Generator().manual_seed(100 * step + worker)
    inputs = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    net.zero_grad()
    (net(inputs).square().sum() * net.scale.sin()).backward()  # pyright: ignore[reportAttributeAccessIssue]


def parts(net: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().reshape(-1) for value in net.parameters()])


class Worker:
    """One rank: its model, its optimizer, its connections."""

    def __init__(self, number: int, client: Client, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        self.number, self.client = number, client
        self.net = model()
        self.optimizer = make(self.net.parameters())
        self.steps = 0
        alone = Comm(SingleRank(on_cuda=False), rank=0, world_size=1, store=torch.distributed.HashStore())
        context = Context(comm=alone, adopt=lambda tensor: None)
        self.update = LocalUpdate(context, client, ServedParameters(client), number, lambda words: None)

    def step(self) -> None:
        gradient(self.net, self.number, self.steps)
        self.steps += 1
        self.update._step(self.optimizer, pytest.fail)


@contextmanager
def workers(served: RunningServers, make: Callable[[Any], torch.optim.Optimizer]) -> Iterator[list[Worker]]:
    made = [Worker(number, served.client(number), make) for number in range(served.workers)]
    try:
        yield made
    finally:
        for worker in made:
            worker.client.close()


class Reference:
    """The same algorithm in this process: one model and optimizer at the server, a copy at each worker."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        self.server = model()
        self.optimizer = make(self.server.parameters())
        self.copies = [model() for _ in range(WORKERS)]
        self.steps = [0] * WORKERS

    def apply(self, worker: int) -> None:
        copy = self.copies[worker]
        gradient(copy, worker, self.steps[worker])
        self.steps[worker] += 1
        for own, theirs in zip(self.server.parameters(), copy.parameters(), strict=True):
            own.grad = theirs.grad
        self.optimizer.step()

    def answer(self, worker: int) -> None:
        self.copies[worker].load_state_dict(self.server.state_dict())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("servers", [1, 2])
def test_async_is_the_reference_step_by_step(optimizer: str, servers: int) -> None:
    make = OPTIMIZERS[optimizer]
    reference = Reference(make)
    with serving(servers, workers=WORKERS, rule="async") as served, workers(served, make) as ranks:
        for number in ORDER:
            reference.apply(number)
            reference.answer(number)
            ranks[number].step()
            torch.testing.assert_close(
                parts(ranks[number].net), parts(reference.copies[number]), rtol=0, atol=1e-12
            )


def test_learning_rates_of_a_schedule_reach_the_servers() -> None:
    make = OPTIMIZERS["momentum"]
    reference = Reference(make)
    with serving(2, workers=WORKERS, rule="async") as served, workers(served, make) as ranks:
        for place, number in enumerate(ORDER):
            for each in (reference.optimizer, ranks[number].optimizer):
                each.param_groups[0]["lr"] = 0.05 / (1 + place)
            reference.apply(number)
            reference.answer(number)
            ranks[number].step()
            torch.testing.assert_close(
                parts(ranks[number].net), parts(reference.copies[number]), rtol=0, atol=1e-12
            )


def test_bounded_keeps_a_fast_worker_waiting_and_answers_with_what_is_there_then() -> None:
    """Staleness 1: worker 0 makes two steps; the second is answered when both others have made one."""
    make = OPTIMIZERS["adam"]
    reference = Reference(make)
    with (
        serving(1, workers=WORKERS, rule="bounded", staleness=1) as served,
        workers(served, make) as ranks,
    ):
        reference.apply(0)
        reference.answer(0)
        ranks[0].step()
        ahead = threading.Thread(target=ranks[0].step)
        ahead.start()
        while ranks[0].update._steps < 2 or not served.servers[0].waiting:
            assert ahead.is_alive()
        reference.apply(0)  # its change is made at once, and its answer waits
        for number in (1, 2):
            assert ahead.is_alive()
            reference.apply(number)
            reference.answer(number)
            ranks[number].step()
        ahead.join()
        reference.answer(0)
        for rank, copy in zip(ranks, reference.copies, strict=True):
            torch.testing.assert_close(parts(rank.net), parts(copy), rtol=0, atol=1e-12)


def test_nobody_waits_for_a_worker_that_has_left() -> None:
    make = OPTIMIZERS["momentum"]
    with (
        serving(1, workers=WORKERS, rule="bounded", staleness=0) as served,
        workers(served, make) as ranks,
    ):
        for worker in (1, 2):
            served.servers[0]._presence.left(worker)
        for _ in range(3):
            ranks[0].step()
        assert not served.servers[0].waiting


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("servers", [1, 2])
def test_geo_is_the_reference_step_by_step(every: int, servers: int) -> None:
    make = OPTIMIZERS["adam"]
    server = parts(model())
    copies = [model() for _ in range(WORKERS)]
    own = [make(copy.parameters()) for copy in copies]
    bases = [server.clone() for _ in range(WORKERS)]
    steps = [0] * WORKERS
    with serving(servers, workers=WORKERS, rule="async") as served:
        clients = [served.client(worker) for worker in range(WORKERS)]
        nets = [model() for _ in range(WORKERS)]
        optimizers = [make(net.parameters()) for net in nets]
        updates = [
            GeoUpdate(client, ServedParameters(client), every, rank, WORKERS)
            for rank, client in enumerate(clients)
        ]
        for number in ORDER:
            # The reference: GEO-SGD as Paddle has it.
            gradient(copies[number], number, steps[number])
            own[number].step()
            if (steps[number] + 1) % every == 0:
                now = parts(copies[number])
                difference = (now - bases[number]) / WORKERS
                server += difference
                merged = now + (server - (bases[number] + difference))
                nn.utils.vector_to_parameters(merged, copies[number].parameters())
                bases[number] = server.clone()
            # Ours.
            gradient(nets[number], number, steps[number])
            updates[number]._before(optimizers[number])
            optimizers[number].step()
            updates[number]._after(optimizers[number])
            steps[number] += 1
            torch.testing.assert_close(parts(nets[number]), parts(copies[number]), rtol=0, atol=1e-12)
        for client in clients:
            client.close()


def test_the_state_of_an_optimizer_is_read_from_servers_and_loaded_into_them() -> None:
    make = OPTIMIZERS["adam"]
    plain = model()
    optimizer = make(plain.parameters())
    with serving(2, workers=1, rule="async") as served, workers(served, make) as (rank,):
        for step in range(3):
            gradient(plain, 0, step)
            optimizer.step()
            rank.step()
        state = rank.update._read(rank.optimizer)
        for mine, theirs in zip(rank.net.parameters(), plain.parameters(), strict=True):
            assert state[mine].keys() == optimizer.state[theirs].keys()
            for name, value in optimizer.state[theirs].items():
                torch.testing.assert_close(state[mine][name], value, rtol=0, atol=1e-12)
        # What a checkpoint gives the optimizer goes to the servers with the next step.
        vars(rank.optimizer)["state"] = state
        gradient(plain, 0, 3)
        optimizer.step()
        rank.step()
        torch.testing.assert_close(parts(rank.net), parts(plain), rtol=0, atol=1e-12)


def test_sparse_gradients_are_refused() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(UsageError, match="take no sparse gradient, which weight has"):
        _refuse_others(torch.optim.SGD(embedding.parameters(), 0.1))
