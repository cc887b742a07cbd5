"""Installation of model averaging among ranks that train by themselves."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ronde.errors import UsageError
from ronde.patching.late_patches import LatePatches
from ronde.patching.patches import Patches
from ronde.patching.stacks import BACKWARD
from ronde.plan import Plan
from ronde.runtime.groups import join_group, join_some, listens_on
from ronde.runtime.replica import ModelReplica
from ronde.sync.averaging.async_average import AsyncAverage
from ronde.sync.averaging.decentralized import Decentralized
from ronde.sync.averaging.local_steps import LocalSteps
from ronde.sync.averaging.low_precision import LowPrecision
from ronde.sync.averaging.protocol import Averaging

__all__ = ["install", "join", "of_plan"]

_FIRST_INTERVAL = 1  # the default of `every` with `adaptive=true`; Paddle's init_k_steps


def join(replica: ModelReplica, plan: Plan, own_file: Callable[[str], bool]) -> Averaging:
    """Join the group for averages: ranks with the same blocks."""
    config, algorithm = replica.config, plan.communication.algorithm
    host = listens_on(config)
    if len(replica.same) == config.place.world_size:
        return of_plan(plan, join_group(config, "average", host, algorithm, own_file))
    return of_plan(plan, join_some(config, "average", host, algorithm, replica.same))


def of_plan(plan: Plan, comm: Any) -> Averaging:
    """Create the model averaging protocol of a plan without servers."""
    update = plan.update
    match update.rule:
        case "local":
            every = update.every or _FIRST_INTERVAL
            return LocalSteps(comm, every=every, adaptive=update.adaptive, warm_up=update.warm_up or 0)
        case "decentralized":
            if plan.communication.compressor == "int8":
                return LowPrecision(comm)
            return Decentralized(comm, update.peers or "all")
        case "async-average":
            return AsyncAverage(comm, warm_up=update.warm_up or 0)
        case "sync" | "async" | "bounded" | "geo":
            raise ValueError(f"{plan.item('update')} averages no parameters among ranks")


def install(patches: Patches, averaging: Averaging, plan: Plan) -> None:
    """Install hooks for steps and losses; refuse uses that need equal ranks."""

    def before(optimizer: Any, *_: Any) -> None:
        averaging.before_step(optimizer)

    def after(optimizer: Any, *_: Any) -> None:
        averaging.after_step(optimizer)

    patches.undo(register_optimizer_step_pre_hook(before).remove)
    patches.undo(register_optimizer_step_post_hook(after).remove)
    if plan.update.adaptive:
        _listen_to_losses(patches, averaging)
    if plan.update.rule == "async-average":
        _refuse_clipping(patches, plan)
    late = LatePatches({"ronde.server.embedding_table": lambda module: _refuse_tables(patches, module, plan)})
    late.install()
    patches.undo(late.uninstall)


def _listen_to_losses(patches: Patches, averaging: Averaging) -> None:

    def around(plain: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            first = tensors[0] if isinstance(tensors, (tuple, list)) and tensors else tensors
            if isinstance(first, torch.Tensor) and first.numel() == 1:
                averaging.last_loss = first.detach()
            plain(tensors, *args, **kwargs)

        return backward

    patches.layer(BACKWARD, "averaging", around)


def _refuse_clipping(patches: Patches, plan: Plan) -> None:
    def clip_grad_norm_(*_: Any, **__: Any) -> Any:
        raise UsageError(
            f"clip_grad_norm_ and {plan.item('update')} contradict each other: ranks are at different steps, "
            "so no gradient norm over all ranks exists; use clip_grad_value_, or --plan local-sgd, where "
            "each rank clips its own [R286]"
        )

    patches.set(torch.nn.utils, "clip_grad_norm_", clip_grad_norm_)
    patches.set(torch.nn.utils.clip_grad, "clip_grad_norm_", clip_grad_norm_)


def _refuse_tables(patches: Patches, module: ModuleType, plan: Plan) -> None:
    def __init__(*_: Any, **__: Any) -> None:
        raise UsageError(
            f"EmbeddingTable and {plan.item('update')} contradict each other: rows are not averaged; use "
            "--plan hybrid, or geo,every=K with servers [R287]"
        )

    patches.set(module.EmbeddingTable, "__init__", __init__)
