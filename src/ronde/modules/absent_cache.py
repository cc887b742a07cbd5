"""Placeholder for a key-value cache that is split over the stages of a pipeline.

Each stage has the keys of its own layers.
"""

from __future__ import annotations

from typing import Any, NoReturn, final

from ronde.errors import UsageError

__all__ = ["AbsentCache"]


@final
class AbsentCache:
    """Placeholder for a cache in a model's output.

    Raises:
        UsageError: the script reads from it.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name) if name.startswith("__") else _refusal()

    def __getitem__(self, key: Any) -> NoReturn:
        raise _refusal()

    def __iter__(self) -> NoReturn:
        raise _refusal()

    def __len__(self) -> int:
        raise _refusal()

    def __bool__(self) -> bool:
        return True


def _refusal() -> UsageError:
    return UsageError(
        "under pipeline=N each stage has only the keys and values of its own layers, so no rank has the "
        "whole cache that the model returned in training; call the model inside torch.no_grad(), or take a "
        "plan without pipeline [R236]"
    )
