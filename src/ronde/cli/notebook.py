"""`%%ronde`: a notebook's cell on ranks."""

from __future__ import annotations

import importlib.util
import os
import shlex
import traceback
from typing import Any

from ronde.cli.app import read_options
from ronde.cli.run import count_ranks
from ronde.cluster.devices import cuda_devices, torch_has_cuda
from ronde.errors import RondeError, UsageError
from ronde.launch.cell import pack, unpack
from ronde.launch.function import launch_pickled
from ronde.launch.notebook_shell import cell_label, in_brief
from ronde.launch.pickle_by_value import learn_sources
from ronde.messages import as_error, as_note

__all__ = ["load", "options_of", "run_cell"]

# What a cell can have: it runs once, on this host.
_TAKEN = """
ranks plan servers seed trace trace_steps quiet threads rng batch_dim loading timeout
durability server_state publish metrics
""".split()


def load(shell: Any) -> None:
    """Register the magic with IPython's shell."""

    def ronde(line: str, cell: str) -> None:
        run_cell(shell, line, cell)

    ronde.__doc__ = run_cell.__doc__
    shell.register_magic_function(ronde, "cell")


def run_cell(shell: Any, line: str, cell: str) -> None:
    """Run this cell on ranks, and bring its variables back.

    %%ronde --ranks 2 --plan zero2

    Options are those of `ronde run` that a cell can have. The variables, functions and classes that the cell
    reads go to every rank; what it assigns or changes comes back from rank 0, tensors and models whole and on
    the CPU. The cell continues the notebook's random numbers, unless it has a --seed.
    """
    try:
        if importlib.util.find_spec("cloudpickle") is None:
            raise UsageError("%%ronde needs cloudpickle: pip install 'ronde[notebook]' [R171]")
        words, ranks = options_of(line)
        home = shell.user_ns
        name = f"Cell In[{shell.execution_count}]"
        text = f"%%ronde {line}\n{cell}"
        learn_sources({name: text})
        packed = pack(text, name, home, cell_label(), keeps_states="--seed" not in words)
        result = launch_pickled(packed.pickled(), words, ranks=ranks, program="ronde.runtime.cell")
    except RondeError as error:
        if not hasattr(error, "_render_traceback_"):
            in_brief(error, f"ronde: {as_error(str(error))}")
        raise
    except SyntaxError as error:
        # IPython would show ronde's frames of a SyntaxError.
        told = "".join(traceback.format_exception_only(error)).rstrip()
        raise in_brief(UsageError(f"the cell is not valid Python: {error} [R171]"), told) from None
    unpack(result, home)
    for each, reason in result.left.items():
        print(f"ronde: {as_note(f'{each} does not come back from the ranks: {reason} [R188]')}")


def options_of(line: str) -> tuple[list[str], int]:
    """Return words of `ronde run` for a magic's line, and the number of ranks.

    Raises:
        UsageError: an option is unknown, or one that a cell cannot have.
    """
    given = read_options("run", [*shlex.split(line), "CELL"])
    if given.pop("script") != "CELL":
        raise UsageError(f"%%ronde runs the cell, and takes options alone: %%ronde {line} [R177]")
    given.pop("arguments", None)
    devices = cuda_devices(os.environ) if torch_has_cuda() else ()
    ranks = count_ranks(given.pop("ranks", "auto"), devices, None)
    words: list[str] = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if name not in _TAKEN:
            raise UsageError(
                f"a cell runs once and on this host, so %%ronde has no {option}; put the code into a script "
                f"for ronde run {option} [R177]"
            )
        words += [option] if value is True else [option, str(value)]
    return words, ranks
