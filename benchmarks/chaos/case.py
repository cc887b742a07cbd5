"""One case: a fault, its place, and the explanation that it must have."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Literal

__all__ = ["Case", "Harm", "Outcome", "script_of"]

Outcome = Literal["fails", "stalls", "ends", "preflight", "refused"]
Harm = Literal["", "cut", "off", "mute", "deafen", "forget", "slow", "store", "launcher"]

_SCRIPT = '''\
import ctypes, os, sys, time
import torch
from torch import nn
import ronde

RANK, CULPRIT, STEPS = ronde.rank(), {culprit}, {steps}
HERE = os.environ["CHAOS_HERE"]
libc = ctypes.CDLL(None)


def mark():
    """The fault begins now; told past Python, whose files ranks use together."""
    libc.close(libc.creat(f"{{HERE}}/fault".encode(), 0o644))


{fault}

torch.manual_seed(0)
model = globals().get("make_model", lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = globals().get("make_data", lambda: torch.utils.data.TensorDataset(torch.randn(24 * STEPS, 16)))()
loader = torch.utils.data.DataLoader(data, batch_size=24, **globals().get("LOADER", {{}}))
for step, (x,) in enumerate(loader, 1):
    out = model(x)
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if "at_step" in globals():
        if at_step(step, out) == "break":
            break
print("end")
'''


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A fault of one rank.

    Attributes:
        fault: code that defines `at_step(step, out)`, `make_model()`, `make_data()` or `LOADER`.
        causes: names, of which the explanation must have one.
        rank: number that it must name; None for no rank, -1 for any.
        outcome: the run fails by itself; it stalls, and is ended when that was explained; it ends well, and
            `ronde doctor` is asked; `preflight`: `ronde doctor` is asked before a run; `refused`: it is, and
            the run then does not begin.
        options: more options of `ronde run`.
        environment: variables of the run.
        needs: a file that must be writable for it, or a program; "" for none.
        before: a line of the shell that is run in a mount namespace of its own before; needs root.
        host: name that the explanation must have, of a fault of hosts, "-" for any; "": that of its rank.
        harm: harm to the last host, or a link, when the fault is marked.
        there, launcher_there: lines of the shell, run before on the last host, and on the launcher's.
        clock: seconds by which the last host's clock is ahead.
        hosts: names of the ranks' hosts, in place of the first two.
    """

    name: str
    causes: tuple[str, ...]
    fault: str = ""
    rank: int | None = 1
    culprit: int = 1
    ranks: int = 2
    steps: int = 12
    outcome: Outcome = "fails"
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    before: str = ""
    needs: str = ""
    host: str = ""
    harm: Harm = ""
    there: str = ""
    launcher_there: str = ""
    clock: float = 0.0
    hosts: tuple[str, ...] = ()


def script_of(case: Case) -> str:
    """The whole script."""
    return _SCRIPT.format(culprit=case.culprit, steps=case.steps, fault=textwrap.dedent(case.fault).strip())


def at_third(code: str, *, marks: bool = True) -> str:
    """A fault of the culprit in its third step."""
    lines = ["mark()"] if marks else []
    lines += textwrap.dedent(code).strip().splitlines()
    body = "\n".join(f"        {line}" for line in lines)
    return f"def at_step(step, out):\n    if step == 3 and RANK == CULPRIT:\n{body}\n"
