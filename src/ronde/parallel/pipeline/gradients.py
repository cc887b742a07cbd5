"""Refusal of single parameters' gradients, which one rank alone computes under `pipeline=N`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ronde.errors import UsageError
from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.patching.stacks import BACKWARD, GRAD

__all__ = ["refuse_lone_gradients"]


def refuse_lone_gradients(patches: Patches, in_stage: Callable[[torch.Tensor], bool], item: str) -> None:
    """Patch the functions by which a script asks for such a gradient.

    Args:
        in_stage: predicate for a parameter of one stage.
        item: plan item by which messages name the pipeline.
    """
    plain_hook: Any = torch.Tensor.register_post_accumulate_grad_hook

    def register_post_accumulate_grad_hook(tensor: torch.Tensor, hook: Any) -> Any:
        if in_stage(tensor):
            raise UsageError(
                f"a hook was registered on the gradient of a parameter of shape {list(tensor.shape)}, which "
                f"only one rank computes under {item}; step the optimizer after backward, or take a plan "
                "without pipeline [R242]"
            )
        return plain_hook(tensor, hook)

    def refuse(inputs: Any) -> None:
        given = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        for each in given if isinstance(given, (list, tuple)) else ():
            if isinstance(each, torch.Tensor) and in_stage(each):
                raise UsageError(
                    f"gradients of single parameters were asked for (shape {list(each.shape)}), which only "
                    f"one rank computes under {item}; use loss.backward(), or a plan without pipeline [R243]"
                )

    def around_grad(plain: Callable[..., Any]) -> Callable[..., Any]:
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            refuse(inputs)
            return plain(outputs, inputs, *args, **kwargs)

        return modes_first(grad)

    def around_backward(plain: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, inputs: Any = None, **kwargs: Any) -> None:
            refuse(inputs)
            plain(tensors, *args, inputs=inputs, **kwargs)

        return backward

    hook = modes_first(register_post_accumulate_grad_hook)
    patches.set(torch.Tensor, "register_post_accumulate_grad_hook", hook)
    patches.layer(GRAD, "model parallel", around_grad)
    patches.layer(BACKWARD, "model parallel", around_backward)
