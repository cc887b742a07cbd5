"""A script that clips no gradient at all, though there are parameters in parts, may not know them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ronde.parallel.sharded_parameters import ShardedParameters
from ronde.patching.patches import Patches

__all__ = ["install"]


def install(patches: Patches, parameters: ShardedParameters, note: Callable[[str], None]) -> None:
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        noting = _noting(getattr(torch.nn.utils, name), name, parameters, note)
        patches.set(torch.nn.utils, name, noting)
        patches.set(torch.nn.utils.clip_grad, name, noting)


def _noting(
    plain: Callable[..., Any], name: str, sharded: ShardedParameters, note: Callable[[str], None]
) -> Callable[..., Any]:
    @functools.wraps(plain)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = parameters if isinstance(parameters, torch.Tensor) else list(parameters)
        if isinstance(tensors, list) and not tensors and sharded.are_there:
            note(
                f"{name} was given no parameters and clipped nothing, while the model's lie in parts; if "
                f"they were chosen by type(p) is torch.nn.Parameter, choose by isinstance(p, "
                f"torch.nn.Parameter)"
            )
        return plain(tensors, *args, **kwargs)

    return clip
