"""Cost of recording steps: `python -m benchmarks.recording`, on a quiet machine.

One process trains a tiny model, in turns with and without a recorder: what stands between the two is the cost
of a step with one batch, one call of a model, one backward, one optimizer and one loss that is read. A second
figure is what a module inside of a model costs by itself. Times are those of the processor, so that others
disturb little.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time_ns
from typing import Any

from ronde.bench.machine import Machine
from ronde.bench.spread import Spread
from ronde.trace.counters import Tally

__all__ = ["main", "step_cost"]

_ROUNDS = 40
_STEPS = 250
_STEP_US = 5000.0
_DEEP = 64


def step_cost(rounds: int = _ROUNDS, steps: int = _STEPS, layers: int = 1) -> Spread:
    """Microseconds that recording adds to a step, in each pair of rounds.

    Args:
        layers: modules inside of the model.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    tally = Tally()
    hook = register_optimizer_step_post_hook(lambda *_: tally.step())
    try:
        train = _training(torch, layers)
        train(steps)
        pairs: list[float] = []
        for _ in range(rounds):
            plain = _per_step(train, steps)
            with _recorded(tally):
                recorded = _per_step(train, steps)
            pairs.append((recorded - plain) / 1000)
        return Spread.of(pairs)
    finally:
        hook.remove()


def _training(torch: Any, layers: int) -> Callable[[int], None]:
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(layers - 1)), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.ones(4 * max(_STEPS, 1), 4))

    def train(steps: int) -> None:
        loader = iter(torch.utils.data.DataLoader(data, batch_size=4))
        for _ in range(steps):
            (batch,) = next(loader)
            loss = model(batch).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()

    return train


def _per_step(train: Callable[[int], None], steps: int) -> float:
    begun = thread_time_ns()
    train(steps)
    return (thread_time_ns() - begun) / steps


@contextmanager
def _recorded(tally: Tally) -> Iterator[None]:
    from ronde.launch.rank_config import RankConfig, RankPlace
    from ronde.launch.run_spec import RunSpec
    from ronde.patching.patches import Patches
    from ronde.runtime.recording import open_recorder, record
    from ronde.runtime.traffic import GroupTraffic

    with tempfile.TemporaryDirectory() as folder:
        place = RankPlace(rank=0, world_size=1, local_rank=0, local_world_size=1, run_dir=folder, store="")
        config = RankConfig(run=RunSpec(script=""), place=place)
        recorder = open_recorder(config, GroupTraffic())
        assert recorder is not None
        patches = Patches()
        record(recorder, patches, None)
        tally.recorder = recorder
        try:
            yield
        finally:
            tally.recorder = None
            patches.restore()
            recorder.close()


def main() -> None:
    """Print the figures; exit code 1 above 0.5 % of a 5 ms step."""
    machine = Machine.here()
    whole = step_cost()
    deep = step_cost(layers=_DEEP)
    share = whole.median / _STEP_US
    inside = (deep.median - whole.median) / (_DEEP - 1)
    print(f"{machine.cpu}, {machine.cores} cores, torch {machine.torch}, load {machine.load} before")
    print(
        f"recording a step: {whole.median:.1f} us (quartiles {whole.low:.1f} to {whole.high:.1f}, "
        f"{_ROUNDS} pairs), {share:.2%} of a step of 5 ms"
    )
    print(f"a module inside of a model, on one rank: {inside:.2f} us")
    sys.exit(share > 0.005)


if __name__ == "__main__":
    main()
