"""Trace of a script up to its second optimizer step, for its costs."""

from __future__ import annotations

import contextlib
import io
import os
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ronde.patching.patches import Patches
from ronde.runtime.costs.amounts import ForwardAmounts
from ronde.runtime.costs.compiler import Compiler
from ronde.runtime.costs.counting import Counter
from ronde.runtime.costs.fakes import faked
from ronde.runtime.costs.processor import on_processor
from ronde.runtime.script import as_a_guest, execute
from ronde.runtime.step import Step

__all__ = ["trace_script"]

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class _Done(BaseException):
    """Raised before the second step."""


def trace_script(script: str, arguments: Sequence[str], *, real: bool = False) -> dict[str, Any]:
    """Measure the operations and kept tensors of the script's first step, as numbers.

    Args:
        real: whether to use real tensors, and so their memory and time; needed by a script that reads values.

    Returns:
        amounts of `first`, `last` and of all `blocks`, `rows`, `tokens`, `heads`, `slots`, `itemsize`,
        `loss_apart`; or
        `problem`, a sentence, with `line`, where it arose in the script, "" without a problem.
    """
    counter = Counter(real=real)
    compiler = Compiler()
    steps = _Steps(counter)
    written, code = io.StringIO(), None
    hooks = [register_optimizer_step_pre_hook(steps.before), register_optimizer_step_post_hook(steps.after)]
    try:
        with (
            as_a_guest(),
            _silent(written),
            contextlib.nullcontext() if real else on_processor(),
            contextlib.nullcontext() if real else faked(),
            compiler.noted(),
            steps.noted(),
            counter,
            counter.watching(),
        ):
            execute(script, arguments, module=False)
    except _Done:
        pass
    except SystemExit as left:
        code = left.code
    except Exception as error:
        return {"problem": _told(error), "line": _line(error, script)}
    finally:
        for hook in hooks:
            hook.remove()
    if code and not steps.done:
        return {"problem": _left(code, written.getvalue()), "line": ""}
    if counter.model is None:
        return {"problem": "it calls no model that has parameters", "line": ""}
    if steps.done == 0:
        return {"problem": "it makes no optimizer step", "line": ""}
    return {**_amounts(counter, steps), "kernels": compiler.kernels}


class _Steps:
    """Step hooks that end counting after one step, and the script at the second."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self.done = 0
        self.slots = 0.0
        self.itemsize = 4
        self.are_rondes = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note inside the block whether the script trains by `ronde.Step`."""

        def of_session(_: Step) -> None:
            self.are_rondes = True

        patches = Patches()
        patches.set(Step, "_of_session", of_session)
        try:
            yield
        finally:
            patches.restore()

    def before(self, *_: Any) -> None:
        self._counter.counting = False
        if self.done and self._counter.model is not None:
            raise _Done

    def after(self, optimizer: Optimizer, *_: Any) -> None:
        if self._counter.model is None:
            return
        self.done += 1
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        size = sum(each.nbytes for each in parameters)
        held = [
            value.nbytes
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.dim()
        ]
        self.slots = sum(held) / max(size, 1)
        self.itemsize = parameters[0].itemsize if parameters else 4


def _amounts(counter: Counter, steps: _Steps) -> dict[str, Any]:
    parts = {"first": counter.first, "last": counter.last}
    return {
        **{name: part.fields() for name, part in parts.items()},
        "blocks": [part.fields() for part in _run(counter.blocks)],
        "rows": counter.rows,
        "tokens": counter.tokens,
        "heads": counter.heads,
        "slots": round(steps.slots),
        "experts": counter.experts,
        "loss_apart": not (counter.gives_loss or steps.are_rondes),
        "itemsize": steps.itemsize,
    }


def _run(blocks: list[ForwardAmounts]) -> list[ForwardAmounts]:
    """Return the blocks that ran or that have parameters."""
    return [part for part in blocks if part.calls or part.parameters]


def _told(error: Exception) -> str:
    """Describe in a few words why the script cannot run without data."""
    text = " ".join(str(error).split())[:160]
    name = type(error).__name__
    if name == "DataDependentOutputException":
        return f"it reads values that a tensor without data does not have ({text})"
    if name == "DynamicOutputShapeException":
        return f"the size of a result depends on values ({text})"
    if "numpy" in text.lower():
        return f"it turns a tensor into a NumPy array ({text})"
    return f"{name}: {text}"


def _left(code: object, written: str) -> str:
    """Describe the script's own end with an exit code or a sentence."""
    last = " ".join(written.strip().rpartition("\n")[2].split())[:160]
    said = last if isinstance(code, int) else str(code)
    ended = f"it ended with exit code {code if isinstance(code, int) else 1}"
    return f"{ended} ({said})" if said else ended


def _line(error: Exception, script: str) -> str:
    """Return the innermost line of the script, else of neither ronde nor torch."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if os.path.abspath(each.filename) == os.path.abspath(script)]
    torch_folder = os.path.dirname(torch.__file__)
    others = [each for each in frames if not each.filename.startswith((_OURS, torch_folder, "<"))]
    found = own or others
    if not found:
        return ""
    return f"{os.path.basename(found[-1].filename)}:{found[-1].lineno}: {found[-1].line}"


@contextlib.contextmanager
def _silent(written: io.StringIO) -> Iterator[None]:
    """Discard the script's output, which would mix with the answer.

    What it says of errors goes to `written`.
    """
    with (
        open(os.devnull, "w") as nothing,
        contextlib.redirect_stdout(nothing),
        contextlib.redirect_stderr(written),
    ):
        yield
