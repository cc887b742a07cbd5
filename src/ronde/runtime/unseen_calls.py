"""Classes of modules whose calls nobody sees, because they are not called by `torch.nn.Module.__call__`."""

from __future__ import annotations

import gc

import torch

__all__ = ["with_own_call"]


def with_own_call() -> list[str]:
    """Names of classes with a `__call__` of their own, of which there are modules with parameters now.

    Some libraries have one that calls `forward` directly. Asked once, at the end of a run.
    """
    modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    own = [
        each for each in modules if type(each).__call__ is not torch.nn.Module.__call__ and _is_anothers(each)
    ]
    inside = {id(part) for each in own for part in each.modules() if part is not each}
    outer = [
        each for each in own if id(each) not in inside and next(iter(each.parameters()), None) is not None
    ]
    return sorted({type(each).__name__ for each in outer})


def _is_anothers(module: torch.nn.Module) -> bool:
    """None of torch's (what `torch.compile` returns), and made to its end."""
    return not type(module).__module__.startswith("torch.") and "_modules" in vars(module)
