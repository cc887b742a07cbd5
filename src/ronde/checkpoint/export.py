"""The models of a checkpoint, as files that plain torch and safetensors read."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from ronde.checkpoint.manifest import checkpoints_in
from ronde.checkpoint.store import read_checkpoint
from ronde.errors import UsageError

__all__ = ["export_models", "find_checkpoint"]


def find_checkpoint(path: Path) -> Path | None:
    """The checkpoint that a path names, or the newest in a folder of them; None where it is neither."""
    if (path / "manifest.json").is_file() and (path / "state.pt").is_file():
        return path
    return next((place for _, place in checkpoints_in(path)), None)


def export_models(place: Path, out: Path) -> list[str]:
    """Write the `state_dict` of each model of a checkpoint to `out`, as NAME.pt and NAME.safetensors.

    Returns:
        the names: of the script's variables.

    Raises:
        UsageError: the checkpoint is damaged, or has no model.
        OSError: `out` cannot be written.
    """
    try:
        _, state = read_checkpoint(place)
        tensors = state["tensors"]
        models = {
            name: {key: tensors[held] for key, held in keys.items()} for name, keys in state["models"].items()
        }
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UsageError(f"{place} is no whole checkpoint ({error}); name another one") from None
    models = {name: values for name, values in models.items() if values}
    if not models:
        raise UsageError(f"{place} has no model: the script held none in a variable at that step")
    out.mkdir(parents=True, exist_ok=True)
    short = _short(list(models))
    for name, values in models.items():
        file = out / short[name]
        torch.save(values, f"{file}.pt")
        _save_safetensors(values, f"{file}.safetensors")
    return [short[name] for name in models]


def _save_safetensors(tensors: dict[str, torch.Tensor], path: str) -> None:
    from safetensors.torch import save_file

    # It refuses tensors that share memory: those that are tied have a copy each.
    save_file({key: value.clone().contiguous() for key, value in tensors.items()}, path, {"format": "pt"})


def _short(names: list[str]) -> dict[str, str]:
    """Names of files: the variable's own where that is one's only."""
    last = {name: re.sub(r"[^\w.-]+", "_", re.sub(r"^(\w+@\d+|__main__)\.", "", name)) for name in names}
    found: dict[str, str] = {}
    for name in names:
        unique = list(last.values()).count(last[name]) == 1
        found[name] = last[name] if unique else re.sub(r"[^\w.@-]+", "_", name).lstrip(os.curdir)
    return found
