"""Import of weights from other programs into a checkpoint."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from ronde.checkpoint.state import State
from ronde.checkpoint.store import Store, read_checkpoint, read_journal
from ronde.errors import UsageError
from ronde.trace.checkpoint_manifest import checkpoints_in

__all__ = ["copy_with_weights", "read_weights"]

_INDEX, _WHOLE, _OF_DCP = "model.safetensors.index.json", "model.safetensors", ".metadata"


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read a `state_dict` in Hugging Face's layout, DCP's, or one file.

    Args:
        path: a folder of either, or a file .safetensors, or one of `torch.save`.

    Raises:
        UsageError: the path has no weights in these forms, or damaged ones.
    """
    try:
        values = _read(path)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"to read {path} takes {error.name}, which is not installed: pip install 'ronde[serve]' [R735]"
        ) from None
    except Exception as error:  # each reader has errors of its own
        raise UsageError(
            f"{path} cannot be read as weights ({_first_line(error)}); name a folder in Hugging Face's "
            "layout or of torch.distributed.checkpoint, or a file .safetensors or .pt [R523]"
        ) from None
    return {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}


def _read(path: Path) -> Mapping[str, torch.Tensor]:
    if (path / _OF_DCP).is_file():
        return _read_distributed(path)
    if not path.is_dir():
        return _read_file(path)
    if not (path / _INDEX).is_file():
        return _read_file(path / _WHOLE)
    names = set(json.loads((path / _INDEX).read_text())["weight_map"].values())
    return {key: value for name in sorted(names) for key, value in _read_file(path / name).items()}


def _read_file(path: Path) -> Mapping[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _read_distributed(path: Path) -> Mapping[str, torch.Tensor]:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    found = checkpoint.FileSystemReader(path).read_metadata().state_dict_metadata
    values = {
        key: torch.empty(value.size, dtype=value.properties.dtype)
        for key, value in found.items()
        if isinstance(value, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one process alone reads
        checkpoint.load(values, checkpoint_id=path, no_dist=True)
    return values


def copy_with_weights(place: Path, model: str, weights: Path, out: Path) -> None:
    """Write a copy of a checkpoint with other weights of a model.

    Args:
        place: folder of the checkpoint.
        model: the variable of the script, as `ronde export` names it; "" for the only one.
        weights: weights in a form of `read_weights`.
        out: a folder without checkpoints; the new one is its first.

    Raises:
        UsageError: the weights are not those of this model, the checkpoint is damaged, or `out` has some.
        OSError: `out` cannot be written.
    """
    if any(checkpoints_in(out)):
        raise UsageError(f"{out} has checkpoints already, and they stay; name a new --out DIR [R521]")
    try:
        manifest, state = read_checkpoint(place)
        journal = read_journal(place, manifest)
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{place} is not a whole checkpoint ({error}); name another one [R513]") from None
    name, keys = _model(state, model, place)
    put = _fitted(state, keys, read_weights(weights), f"{weights} and {name} of {place} are not of one model")
    state["tensors"].update(put)
    state.pop("ranks", None)  # models of single ranks, which have other weights
    store = Store(out, keep=1)
    try:
        store.write(manifest, state, journal)
    finally:
        store.close()


def _model(state: State, asked: str, place: Path) -> tuple[str, Mapping[str, str]]:
    models = {name.rpartition(".")[2]: keys for name, keys in state["models"].items() if keys}
    if asked in models:
        return asked, models[asked]
    if not asked and len(models) == 1:
        return next(iter(models.items()))
    names = ", ".join(models) or "none"
    raise UsageError(f"{place} has the models {names}; name one of them by --model NAME [R523]")


def _fitted(
    state: State, keys: Mapping[str, str], values: Mapping[str, torch.Tensor], wrong: str
) -> dict[str, torch.Tensor]:
    """Match weights to a model's tensors; return the new value of each.

    Args:
        wrong: beginning of an error message.
    """
    put: dict[str, torch.Tensor] = {}
    for key in values.keys() - keys.keys():
        raise UsageError(
            f"{wrong}: the former has {key}, and the latter has not; rename it, or take it out [R523]"
        )
    for key, held in keys.items():
        value = values.get(key)
        if value is None:
            continue
        now = state["tensors"][held]
        widens = torch.promote_types(value.dtype, now.dtype) == now.dtype
        if value.shape != now.shape or not widens:
            raise UsageError(
                f"{wrong}: {key} is {value.dtype} {list(value.shape)} in the former, and {now.dtype} "
                f"{list(now.shape)} in the latter; convert it [R523]"
            )
        value = value.to(now.dtype)
        if held in put and not torch.equal(put[held], value):
            raise UsageError(
                f"{wrong}: {key} is tied in the latter, and has values of its own in the former; take it "
                "out [R523]"
            )
        put[held] = value
    missing = [key for key, held in keys.items() if held not in put]
    if missing:
        raise UsageError(f"{wrong}: the former lacks {missing[0]}; add it [R523]")
    return put


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
