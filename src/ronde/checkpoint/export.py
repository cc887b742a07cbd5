"""The models of a checkpoint, as files that plain torch and safetensors read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from ronde.checkpoint.layouts import Layout, write_weights
from ronde.checkpoint.state import State
from ronde.checkpoint.store import newest_whole, read_checkpoint
from ronde.errors import UsageError

__all__ = ["export_models", "find_checkpoint"]


def find_checkpoint(path: Path, tell: Callable[[str], object]) -> tuple[Path, State]:
    """Find the checkpoint at a path, or the newest intact one in a folder.

    Args:
        tell: callback for messages about damaged ones.

    Raises:
        UsageError: the path has no checkpoint.
    """
    if (path / "manifest.json").is_file():
        try:
            return path, read_checkpoint(path)[1]
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(f"{path} is not a whole checkpoint ({error}); name another one [R513]") from None
    found = newest_whole(path, tell, lambda place: (place, read_checkpoint(place)[1]))
    if found is None:
        raise UsageError(f"no checkpoint in {path} is whole; name another folder [R513]")
    return found


def export_models(place: Path, state: State, out: Path, layout: Layout = "torch") -> list[str]:
    """Write each model's `state_dict` to `out`, as files or folders.

    They have the names of the script's variables.

    Returns:
        the names of the script's variables with these models.

    Raises:
        UsageError: the checkpoint has no model, or a folder of that name has something in it.
        OSError: `out` cannot be written.
    """
    models = {
        name: {key: state["tensors"][held] for key, held in keys.items()}
        for name, keys in state["models"].items()
        if keys
    }
    if not models:
        raise UsageError(f"{place} has no model: the script held none in a variable at that step [R513]")
    out.mkdir(parents=True, exist_ok=True)
    short = _short(list(models))
    for name, values in models.items():
        write_weights(values, out / short[name], layout)
    return [short[name] for name in models]


def _short(names: list[str]) -> dict[str, str]:
    """Return file names by variable: its last part where that is unique."""
    last = {name: re.sub(r"[^\w.-]+", "_", re.sub(r"^(\w+@\d+|__main__)\.", "", name)) for name in names}
    found: dict[str, str] = {}
    for name in names:
        unique = list(last.values()).count(last[name]) == 1
        found[name] = last[name] if unique else re.sub(r"[^\w.@-]+", "_", name).lstrip(os.curdir)
    return found
