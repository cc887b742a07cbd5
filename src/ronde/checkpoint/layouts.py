"""Layouts of exported weights: files of torch, safetensors, Hugging Face, and DCP."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import torch

from ronde.errors import UsageError

__all__ = ["LAYOUTS", "Layout", "write_weights"]

Layout = Literal["torch", "hf", "dcp"]
LAYOUTS: dict[Layout, str] = {
    "torch": "as .pt and .safetensors",
    "hf": "in Hugging Face's layout",
    "dcp": "in the format of torch.distributed.checkpoint",
}
assert tuple(LAYOUTS) == get_args(Layout)

_LARGEST_SHARD = 5_000_000_000
"""Bytes of tensors in one file, as `save_pretrained` of transformers has it."""


def write_weights(
    values: Mapping[str, torch.Tensor], place: Path, layout: Layout, largest: int = _LARGEST_SHARD
) -> None:
    """Write a `state_dict`.

    Args:
        place: path of files, without their endings; for `hf` and `dcp` a new folder.
        largest: bytes of a file of `hf`; a larger model has several, and an index.

    Raises:
        UsageError: the folder has something in it.
        OSError: the files cannot be written.
    """
    # Tensors that share memory, as tied ones do, have a copy each.
    copies = {key: value.clone().contiguous() for key, value in values.items()}
    if layout == "torch":
        torch.save(dict(values), f"{place}.pt")
        _save_safetensors(copies, f"{place}.safetensors")
        return
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise UsageError(
            f"{place} is not empty, and may contain files of another model; name a new --out DIR [R521]"
        )
    if layout == "hf":
        _write_hugging_face(copies, place, largest)
    else:
        from torch.distributed import checkpoint

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that one process alone writes
            checkpoint.save(copies, checkpoint_id=place, no_dist=True)


def _write_hugging_face(values: dict[str, torch.Tensor], folder: Path, largest: int) -> None:
    shards: list[dict[str, torch.Tensor]] = [{}]
    for key, value in values.items():
        if shards[-1] and sum(each.nbytes for each in shards[-1].values()) + value.nbytes > largest:
            shards.append({})
        shards[-1][key] = value
    if len(shards) == 1:
        _save_safetensors(shards[0], str(folder / "model.safetensors"))
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _save_safetensors(shard, str(folder / name))
        weight_map |= dict.fromkeys(shard, name)
    total = sum(value.nbytes for value in values.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _save_safetensors(tensors: dict[str, torch.Tensor], path: str) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path, {"format": "pt"})
