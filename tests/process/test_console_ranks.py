"""What a user types: answers reach every rank, debuggers open on rank 0 alone."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ronde.errors import UsageError
from ronde.patching.patches import Patches
from ronde.process.console import Console
from ronde.tensor.global_tensor import wrap
from ronde.tensor.rules import table


@contextmanager
def conversation(rank: Any, *lines: str) -> Iterator[Any]:
    """A session with a console, at which the user of rank 0 types these lines."""
    typed = iter(lines)

    def line(prompt: object = "", /) -> str:
        assert rank.rank == 0, "another rank than the main one read a line"
        for each in typed:
            return each
        raise EOFError

    patches, plain = Patches(), Patches()
    with rank.session() as session:
        comms = [rank.groups["boundary"], rank.groups["reducer"]]
        console = Console(comms, session.tally, session.context.on_main_thread, terminal=True)
        plain.set(builtins, "input", line)
        console.install(patches)
        try:
            yield session
        finally:
            patches.restore()
            plain.restore()


def answers(rank: Any) -> list[Any]:
    with conversation(rank, "ada", "7"):
        got: list[Any] = [input("name? "), input()]
        try:
            input()
        except EOFError:
            got.append("end")
        return got


def test_every_rank_gets_the_users_answer(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, answers) == [["ada", "7", "end"]] * 2


def stdin(rank: Any) -> Any:
    with conversation(rank):
        if rank.rank == 0:
            return None
        asked = sys.stdin.isatty()
        try:
            sys.stdin.readline()
        except UsageError as error:
            return asked, str(error)
        return asked, "read"


def test_another_rank_refuses_to_read_what_it_has_not(ranks: Callable[..., list[Any]]) -> None:
    _, (asked, message) = ranks(2, stdin)
    assert asked is True
    assert message.startswith("the script reads sys.stdin, which only rank 0 has; use input()")


def debugged(rank: Any) -> Any:
    """A post-mortem session in which the user prints a loss, a sharded tensor and draws a number."""
    import pdb

    said: list[str] = []

    class Debugger(pdb.Pdb):
        def message(self, msg: str) -> None:
            said.append(msg)

        error = message

    with conversation(rank, "p 1 + 1", "p torch.rand(1).shape", "p rows.sum().shape", "q") as session:
        torch.manual_seed(0)
        layout = session.context.layout(0, 4)
        rows = wrap(session.context, torch.ones(2, 3), layout, table())
        try:
            raise ValueError(rows.shape)
        except ValueError as error:
            debugger = Debugger()
            debugger.reset()
            debugger.interaction(None, error.__traceback__)
        breakpointhook_is_silent = rank.rank == 0 or sys.breakpointhook() is None
        return said[1:], torch.rand(1).item(), rows.tolist(), breakpointhook_is_silent


def test_a_debugger_is_the_main_ranks_alone(ranks: Callable[..., list[Any]]) -> None:
    (said, draw, rows, _), other = ranks(2, debugged)
    assert said[:2] == ["2", "torch.Size([1])"]
    assert "only rank 0 is in the debugger" in said[2]
    # Ranks are in step afterwards: in random numbers, and where a collective is needed.
    assert other == ([], draw, rows, True)
    assert rows == [[1.0] * 3] * 4


def patient(rank: Any, folder: str) -> float:
    """A group whose time limit is short; rank 0 comes late, as one does who sat in a debugger."""
    import time
    from datetime import timedelta

    from ronde.comm.rendezvous import join
    from ronde.comm.topology import RankPosition

    comm = join(
        f"file://{folder}/store",
        name="short",
        place=RankPosition(rank.rank, rank.world_size, rank.rank, rank.world_size),
        device="cpu",
        timeout=timedelta(seconds=1),
        host="127.0.0.1",
    )
    comm.barrier()
    if rank.rank == 0:
        time.sleep(2.0)
    else:
        comm.be_patient()
    total = comm.all_reduce(torch.ones(1)).item()
    comm.close()
    return total


def test_other_ranks_wait_longer_than_the_time_limit(ranks: Callable[..., list[Any]], tmp_path: Any) -> None:
    assert ranks(2, patient, str(tmp_path)) == [2.0, 2.0]


def test_a_console_is_the_main_ranks_alone(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, interactive) == [["[5]"], []]


def interactive(rank: Any) -> list[str]:
    import code
    import contextlib
    import io

    out, prompts = io.StringIO(), io.StringIO()
    quiet = contextlib.redirect_stderr(prompts)
    with conversation(rank, "print([a])"), contextlib.redirect_stdout(out), quiet:
        code.interact(banner="", local={"a": 5}, exitmsg="")
    return out.getvalue().split()


def own_module_called_code(rank: Any, folder: str) -> list[str]:
    before = sys.modules.pop("code", None)
    sys.path.insert(0, folder)
    try:
        with conversation(rank):
            return [name for name in dir(importlib.import_module("code")) if not name.startswith("_")]
    finally:
        sys.path.remove(folder)
        del sys.modules["code"]
        if before is not None:
            sys.modules["code"] = before


def test_a_module_of_the_scripts_is_imported_in_place_of_pythons(
    ranks: Callable[..., list[Any]], tmp_path: Any
) -> None:
    (tmp_path / "code.py").write_text("VALUE = 1\n")
    assert ranks(2, own_module_called_code, str(tmp_path)) == [["VALUE"]] * 2
