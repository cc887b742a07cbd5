"""Torch's recurrent layers as one operation each for observing modes.

Without a kernel for a whole layer, as on a CPU, it is dozens of operations for each step of a sequence.
Passing each one through Python takes a hundred times as long as the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.patching.patches import Patches
from ronde.patching.torch_internals import VF, current_dispatch_modes, disable_current_modes

__all__ = ["RECURRENT", "install", "is_packed"]

_ATEN: Any = torch.ops.aten
RECURRENT: dict[str, Any] = {
    "lstm": _ATEN.lstm.input,
    "gru": _ATEN.gru.input,
    "rnn_tanh": _ATEN.rnn_tanh.input,
    "rnn_relu": _ATEN.rnn_relu.input,
}


def install(patches: Patches) -> None:
    for name, func in RECURRENT.items():
        patches.set(VF, name, _as_one(getattr(VF, name), func))


def _as_one(plain: Callable[..., Any], func: Any) -> Callable[..., Any]:
    """Run a layer as one operation, under modes that can take it so.

    Args:
        plain: runs a layer, or several on top of each other.
        func: the operation that modes see.
    """

    def layer(*args: Any) -> Any:
        modes = current_dispatch_modes()
        if not modes or not _may_be_one(modes, args):
            return plain(*args)

        def carry_out(*args: Any) -> Any:
            with disable_current_modes():
                result = plain(*args)
            for mode in reversed(modes):
                tell = getattr(mode, "seen", None)
                if tell is not None:
                    tell(func, args, {}, result)
            return result

        layers, dropout, training = args[4:7]
        return _by_layers(carry_out, args) if dropout and training and layers > 1 else carry_out(*args)

    return layer


def is_packed(args: Sequence[Any]) -> bool:
    """Return whether a layer's arguments are of the form for packed sequences.

    Such arguments have the sizes of the batch, and no axis for it.
    """
    return not isinstance(args[3], bool)


def _may_be_one(modes: Sequence[Any], args: Sequence[Any]) -> bool:
    """Return whether a plain CPU sequence may run as one operation.

    A mode of the script may record operations to repeat them, so only ronde's modes are allowed. CUDA has
    kernels for whole layers, which draw by themselves.

    Another's mode may keep what it sees, to give it again. CUDA has kernels for whole layers, which draw by
    themselves.
    """
    sequence = args[0]
    if type(sequence) is not torch.Tensor or sequence.device.type != "cpu":
        return False
    return not is_packed(args) and all(type(mode).__module__.startswith("ronde.") for mode in modes)


def _by_layers(carry_out: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Run layers one by one, with dropout between them, as torch does.

    Modes see the draws of dropout.
    """
    sequence, state, weights, has_biases, layers, dropout, training, bidirectional, batch_first = args
    hidden = sequence.transpose(0, 1) if batch_first else sequence
    states: tuple[torch.Tensor, ...] = (state,) if isinstance(state, torch.Tensor) else tuple(state)
    each, directions = len(weights) // layers, 2 if bidirectional else 1
    last: list[list[torch.Tensor]] = [[] for _ in states]
    for place in range(layers):
        if place:
            hidden = torch.dropout(hidden, dropout, True)
        own = [part.narrow(0, place * directions, directions) for part in states]
        hidden, *left = carry_out(
            hidden,
            own[0] if isinstance(state, torch.Tensor) else tuple(own),
            weights[place * each : (place + 1) * each],
            *(has_biases, 1, 0.0, training, bidirectional, False),
        )
        for kept, part in zip(last, left, strict=True):
            kept.append(part)
    output = hidden.transpose(0, 1) if batch_first else hidden
    return output, *map(torch.cat, last)
