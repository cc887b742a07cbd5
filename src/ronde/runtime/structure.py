"""Cuts of a script's models by a mesh, found at their first call."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.errors import UsageError
from ronde.parallel.pipeline.unit_costs import Counts, counting
from ronde.patching.patches import Patches
from ronde.patching.stacks import MODULE_CALL
from ronde.plan import Plan
from ronde.plan.cuts import cuts_by_pattern
from ronde.plan.schedule import chunks_of
from ronde.policies.expert_structure import Mixture, mixtures, modules_of
from ronde.policies.stages import Stages, cut_into_stages
from ronde.policies.tensor_structure import ParameterPlacement, placements
from ronde.runtime.script import as_a_guest, execute

__all__ = ["lines_of_cuts", "model_of_script"]

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


class _StructureFound(BaseException):
    """Raised when the script calls a model, where the search ends."""

    def __init__(self, model: torch.nn.Module, counts: Counts | None) -> None:
        super().__init__()
        self.found = model, counts


def model_of_script(script: str, arguments: Sequence[str]) -> tuple[torch.nn.Module, Counts | None]:
    """Run a script until its first model's call; return model and operation counts.

    The model is the first one with parameters; counts are by module, and missing if the call raises. The
    script's output is discarded.

    Raises:
        UsageError: the script ends before.
    """

    def around(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if next(module.parameters(), None) is None:
                return plain(module, *args, **kwargs)
            try:
                with counting(module) as counts, torch.no_grad():
                    plain(module, *args, **kwargs)
            except Exception:  # also on ranks, which give the script this module
                counts = None
            raise _StructureFound(module, counts)

        return call

    patches = Patches()
    patches.layer(MODULE_CALL, "structure", around)
    with open(os.devnull, "w") as nowhere:
        try:
            with as_a_guest(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                execute(script, list(arguments), module=False)
        except _StructureFound as found:
            return found.found
        except SystemExit:
            pass
        finally:
            patches.restore()
    raise UsageError(
        f"{script} has called no model with parameters, so there is nothing to list; "
        f"give it the arguments with which it trains, behind its name [R229]"
    )


def lines_of_cuts(model: torch.nn.Module, plan: Plan, counts: Counts | None = None) -> list[str]:
    """List the cuts of a model by a plan, as lines.

    Args:
        counts: operations by module.
    """
    stages, lines = plan.mesh.pipeline, list[str]()
    ranks = plan.mesh.expert * plan.mesh.tensor
    spread = mixtures(model, ranks) if plan.mesh.expert > 1 else []
    if stages > 1:
        chunks, closed = chunks_of(plan.compute.schedule), modules_of(spread)
        found = cut_into_stages(model, stages, chunks=chunks, closed=closed, counted=counts)
        lines += _stages(found, stages)
    if plan.mesh.tensor > 1:
        of_experts = {id(tensor) for each in spread for tensor, _ in each.parameters}
        found = placements(model, plan.mesh.tensor, cuts_by_pattern(plan.mesh.cuts))
        lines += _table([each for each in found if id(each.parameter) not in of_experts])
    if plan.mesh.expert > 1:
        lines += _mixtures(spread, ranks)
    return lines


def _mixtures(found: Sequence[Mixture], ranks: int) -> list[str]:
    """Format a line for each mixture; repeated blocks share one."""
    lines: dict[tuple[str, str], int] = {}
    for each in found:
        elements = sum(tensor.numel() for tensor, _ in each.parameters)
        what = f"{each.count} experts of {type(each.module).__name__}, {each.count // ranks} on each rank: "
        key = _NUMBER.sub("*", each.name, count=1), f"{what}{elements // ranks:,} of {elements:,} parameters"
        lines[key] = lines.get(key, 0) + 1
    listed = [
        f"{name}  {what}{f', {count} times' if count > 1 else ''}" for (name, what), count in lines.items()
    ]
    return listed or ["no mixture of experts is found"]


def _stages(found: Stages, count: int) -> list[str]:
    """Format a line for each stage, and one for parameters of all ranks."""
    total = sum(unit.cost for unit in found.units) or 1.0
    shared = found.shared
    alone = [[unit for unit in found.units if unit.stage == stage] for stage in range(count)]
    lines: list[str] = []
    for stage, units in enumerate(alone):
        own = {id(each): each.numel() for unit in units for each in unit.parameters}
        held = sum(own.values()) - sum(own.get(id(each), 0) for each in shared)
        share = sum(unit.cost for unit in units) / total
        runs = [[unit.name for unit in units if unit.chunk == chunk] for chunk in range(found.chunks)]
        names = " and ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else run[0] for run in runs if run)
        lines.append(f"stage {stage}    {names or 'nothing'}: {held:,} parameters, {share:.0%} of the cost")
    if shared:
        lines.append(f"all stages {sum(each.numel() for each in shared):,} parameters, which several use")
    return lines


def _table(found: Sequence[ParameterPlacement]) -> list[str]:
    """Format a line for each parameter; repeated blocks share one (`h.*.mlp.0.weight`)."""
    lines: dict[tuple[str, str, str], int] = {}
    for each in found:
        name = _NUMBER.sub("*", each.name, count=1)
        cut = each.cut
        what = "whole" if cut is None else f"dimension {cut.dim}"
        if cut is not None and cut.fused > 1:
            what += f" of {cut.fused} matrices"
        key = name, what, each.why
        lines[key] = lines.get(key, 0) + 1
    width = max((len(name) for name, _, _ in lines), default=0)
    middle = max((len(what) for _, what, _ in lines), default=0)
    return [
        f"{name.ljust(width)}  {what.ljust(middle)}  {why}{f', {count} times' if count > 1 else ''}"
        for (name, what, why), count in lines.items()
    ]
