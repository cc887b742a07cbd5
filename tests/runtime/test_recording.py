"""What a script does is told to the recorder, on one rank that has no boundary."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.run_spec import RunSpec
from ronde.patching.patches import Patches
from ronde.runtime.recording import open_recorder, record
from ronde.runtime.traffic import GroupTraffic
from ronde.trace.phases import Phase
from ronde.trace.recorder import TraceRecorder
from ronde.trace.step_file import StepRecord, read_steps, steps_path


class Rank:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        place = RankPlace(
            rank=0,
            world_size=1,
            local_rank=0,
            local_world_size=1,
            run_dir=str(folder),
            store="",
        )
        run = RunSpec(script="", trace_steps="1:")  # with a record of each step
        config = RankConfig(run=run, place=place)
        recorder = open_recorder(config, GroupTraffic())
        assert recorder is not None
        self.recorder: TraceRecorder = recorder
        self.steps = 0

    def stepped(self, *_: object) -> None:
        self.steps += 1
        self.recorder.stepped(self.steps, 0)

    @property
    def phase(self) -> int:
        return self.recorder.phases.current

    def records(self) -> tuple[StepRecord, ...]:
        found = read_steps(steps_path(self.folder, 0))
        assert found is not None
        return found.recent


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    rank, patches = Rank(tmp_path), Patches()
    counts = register_optimizer_step_post_hook(rank.stepped)
    record(rank.recorder, patches, None)
    yield rank
    patches.restore()
    counts.remove()
    rank.recorder.close()
    assert rank.phase == Phase.OTHER


def watching(rank: Rank, seen: list[int]) -> torch.nn.Module:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(rank.phase)
            return self.inner(x)

    return Net()


def test_a_script_goes_through_its_phases(rank: Rank) -> None:
    seen: list[int] = []
    net = watching(rank, seen)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for (batch,) in DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2):
        loss = net(batch).mean()
        loss.register_hook(lambda _: seen.append(rank.phase))
        optimizer.zero_grad()
        loss.backward()
        assert rank.phase == Phase.OTHER
        optimizer.step()
    assert seen == [Phase.FORWARD, Phase.BACKWARD] * 3
    for each in rank.records():
        assert min(each.data, each.forward, each.backward, each.optimizer, each.other) > 0


def test_a_closure_goes_forward_and_backward_inside_of_a_step(rank: Rank) -> None:
    seen: list[int] = []
    net = watching(rank, seen)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(torch.ones(4, 2)) - 3).square().mean()
        loss.backward()
        seen.append(rank.phase)
        return loss

    optimizer.step(closure)
    assert set(zip(seen[::2], seen[1::2], strict=True)) == {(Phase.FORWARD, Phase.OPTIMIZER)}
    assert rank.phase == Phase.OTHER
    assert rank.records()[0].losses == 0  # what the optimizer reads is no reading of the script's


def test_a_step_that_raises_leaves_no_mark(rank: Rank) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)  # pyright: ignore[reportArgumentType, reportCallIssue]
    for _ in range(2):
        weight.grad = torch.ones(1)
        optimizer.step()
        assert rank.phase in (Phase.OPTIMIZER, Phase.OTHER)
    assert len(rank.records()) == 2
    rank.recorder.phases.enter(Phase.OTHER)


@pytest.mark.parametrize(
    "read", [lambda x: x.item(), float, lambda x: f"{x:.3f}", lambda x: round(float(x), 2)]
)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_a_loss_is_heard_in_whatever_way_it_is_read(rank: Rank, read: object) -> None:
    assert callable(read)
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loss = net(torch.ones(3, 2)).mean()
    loss.backward()
    optimizer.step()
    read(loss)
    (only,) = rank.records()
    assert (only.loss, only.losses) == (pytest.approx(float(loss.detach())), 1)


def test_other_numbers_are_no_loss(rank: Rank) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loss = net(torch.ones(3, 2)).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0).item()
    optimizer.step()
    torch.ones(1).item()
    float(next(net.parameters()).detach()[0, 0])
    net.bias.item()  # a parameter
    (torch.ones(3) == 1).sum().item()
    assert rank.records()[0].losses == 0


def test_other_threads_are_not_counted(rank: Rank) -> None:
    seen: list[int] = []
    net = watching(rank, seen)
    thread = threading.Thread(target=lambda: net(torch.ones(1, 2)).sum().item())
    thread.start()
    thread.join()
    assert seen == [Phase.OTHER]


def test_an_evaluation_counts_for_the_step_to_come(rank: Rank) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with torch.no_grad():
        net(torch.ones(2, 2)).mean().item()
    net(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    (only,) = rank.records()
    assert only.forward > 0
    assert only.losses == 0


@pytest.mark.soak
def test_a_compiled_model_is_compiled_as_without_ronde(tmp_path: Path) -> None:
    import torch._dynamo.testing

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(5, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).relu()

    def frames() -> int:
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounter()
        for size in range(2, 6):
            net = torch.nn.Sequential(torch.nn.Linear(size, 2), torch.nn.ReLU())
            compiled = torch.compile(net, backend=counter, fullgraph=True)
            compiled(torch.ones(2, size))
            compiled(torch.ones(2, size))
        own = Own()
        own.compile(backend=counter, fullgraph=True)
        own(torch.ones(2, 5))

        @torch.compile(backend=counter, fullgraph=True)
        def step(x: torch.Tensor) -> torch.Tensor:
            return net(x).sum()

        step(torch.ones(2, 5)).backward()
        return counter.frame_count

    plain = frames()
    rank, patches = Rank(tmp_path), Patches()
    record(rank.recorder, patches, None)
    try:
        assert frames() == plain
    finally:
        patches.restore()
        rank.recorder.close()
