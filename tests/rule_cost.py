"""Python that a rule adds to an operation on a cut value: `make rules`.

Two ranks carry out operations on small tensors with a gradient, in turns on plain tensors and on cut ones of
the same size. Times are those of the processor, so that others disturb little. Operations that communicate
are left out: what is timed is the way to the rule and back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import thread_time_ns
from typing import Any

from ronde.bench.machine import Machine
from ronde.bench.spread import Spread
from ronde.tensor.shard import Shard
from ronde.testing.run_ranks import Rank, run_ranks

__all__ = ["added", "main"]

_ROUNDS = 9
_CALLS = 400
_ALLOWED_US = 30.0


def added(rank: Rank, rounds: int = _ROUNDS, calls: int = _CALLS) -> dict[str, Spread]:
    """Microseconds that each rule adds to its operation on this rank, in pairs of rounds."""
    import torch
    import torch.nn.functional as F

    from ronde.parallel.context.rules import sequence_rules
    from ronde.parallel.tensor.rules import tensor_rules
    from ronde.parallel.tensor.sequence_parallel import TokenSharding
    from ronde.tensor import rules
    from ronde.tensor.global_tensor import wrap
    from ronde.tensor.layout import Layout

    torch.set_num_threads(1)
    found: dict[str, Spread] = {}
    with rank.session("ddp") as session:
        context = session.context

        def cut(local: torch.Tensor, dim: int, table: dict[Any, Any]) -> torch.Tensor:
            layout = Layout(dim, local.shape[dim] * context.world_size, context.world_size)
            return wrap(context, local, layout, table)

        own = torch.ones(4, 8, 16, requires_grad=True)
        heads = torch.ones(4, 2, 8, 16, requires_grad=True)
        weight = torch.ones(16, 16, requires_grad=True)

        def linear(x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, weight)

        def norm(x: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(x, (16,))

        anywhere: dict[str, Callable[[torch.Tensor], object]] = {
            "x + x": lambda x: x + x,
            "x * 2": lambda x: x * 2,
            "gelu": F.gelu,
            "transpose": lambda x: x.transpose(0, 1),
            "to float64": lambda x: x.double(),
        }
        cases: list[tuple[str, torch.Tensor, int, dict[Any, Any], dict[str, Callable[..., object]]]] = [
            ("rows", own, 0, rules.table(), {**anywhere, "sum of a row": lambda x: x.sum(-1)}),
            ("tokens", own, 1, sequence_rules("gather"), {**anywhere, "linear": linear, "layer norm": norm}),
            (
                "blocks",
                own,
                2,
                tensor_rules(TokenSharding("off")),
                {**anywhere, "split": lambda x: x.split(4, dim=1)},
            ),
            (
                "heads",
                heads,
                1,
                tensor_rules(TokenSharding("off")),
                {"attention": lambda x: F.scaled_dot_product_attention(x, x, x)},
            ),
        ]
        for name, local, dim, table, operations in cases:
            value = cut(local, dim, table)
            for operation, function in operations.items():
                found[f"{name}: {operation}"] = _paired(function, local, value, rounds, calls)
    return found


def _paired(
    function: Callable[[Any], object], plain: object, value: object, rounds: int, calls: int
) -> Spread:
    first = function(value)
    assert all(isinstance(each, Shard) for each in (first if isinstance(first, tuple) else (first,)))
    _per_call(function, value, calls)
    return Spread.of(
        _per_call(function, value, calls) - _per_call(function, plain, calls) for _ in range(rounds)
    )


def _per_call(function: Callable[[Any], object], value: object, calls: int) -> float:
    begun = thread_time_ns()
    for _ in range(calls):
        function(value)
    return (thread_time_ns() - begun) / calls / 1000


def main() -> None:
    """Print the figures of rank 0; exit code 1 where a rule adds more than 30 us."""
    machine = Machine.here()
    found = run_ranks(added, 2)[0]
    print(f"{machine.cpu}, {machine.cores} cores, torch {machine.torch}, load {machine.load} before")
    for name, us in found.items():
        print(f"{name:24} {us.median:6.1f} us (quartiles {us.low:.1f} to {us.high:.1f}, {_ROUNDS} pairs)")
    sys.exit(max(us.median for us in found.values()) > _ALLOWED_US)


if __name__ == "__main__":
    main()
