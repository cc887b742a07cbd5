"""`pipeline=N`: joins what cuts a model into stages, each on one rank or on the ranks of a tensor group."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.one_f_one_b import OneForwardOneBack
from ronde.parallel.pipeline import Pipeline
from ronde.parallel.pipeline_piece import UsedElsewhere
from ronde.parallel.stand_ins import StandIns
from ronde.parallel.tensor_rules import tensor_rules
from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.patching.stacks import BACKWARD, GRAD
from ronde.plan import Plan
from ronde.plan.cuts import cuts_by_pattern
from ronde.policies.pipeline import pipeline_specs, refuse_sparse_gradients, stage_of, stages_of
from ronde.policies.stages import Stages
from ronde.policies.tensor_structure import placements
from ronde.runtime.block_sharding import BlockRanks, BlockSharding
from ronde.runtime.uncut_models import UncutModels
from ronde.shards.dim_cut import DimCut
from ronde.shards.partition import Partition, by_kind
from ronde.tensor.context import Context, Region

__all__ = ["StageSharding"]


class StageSharding(BlockSharding):
    """What is cut on this rank.

    Args:
        pipeline: the pipeline group, of the ranks that have the same blocks of other stages.
        tensor: the ranks that have other blocks of the same stage; None where a stage is one rank's.

    Attributes:
        pipeline: carries a model's call out.
    """

    sends_gradients = True
    # A stage uses them when no other does.
    cuts_whole_parameters = False

    def __init__(
        self,
        plan: Plan,
        ranks: BlockRanks,
        note: Callable[[str], None],
        pipeline: Comm,
        tensor: Comm | None = None,
    ) -> None:
        super().__init__(plan, ranks, note, partition=Partition(), find=self._find, item="pipeline")
        self._of_stage = 1 if tensor is None else tensor.world_size
        self._override = cuts_by_pattern(plan.mesh.cuts)
        self._uncut = UncutModels(plan.item("tensor"))
        self._stand_ins: StandIns | None = None
        if tensor is not None:
            context = Context.within_rows(tensor)
            self._stand_ins = StandIns(context, tensor_rules(), self._blocks, self._cut.latest)
        self._known: weakref.WeakKeyDictionary[torch.nn.Module, Stages] = weakref.WeakKeyDictionary()
        self.pipeline = Pipeline(pipeline, plan.compute.micro_batches, self)
        self.way = self.pipeline
        self._stages, self._everybody = pipeline, ranks.everybody
        self._steps: list[OneForwardOneBack] = []

    def _find(self, model: torch.nn.Module) -> list[list[torch.Tensor]]:
        """Decide on the parameters of a model; those of a module that one stage has are a unit."""
        refuse_sparse_gradients(model, self._stages.world_size)
        cuts: dict[int, DimCut] = {}
        if self._stand_ins is not None:
            found = placements(model, self._of_stage, self._override)
            self._uncut.tell(model, found)
            cuts = {id(each.parameter): each.cut for each in found if each.cut is not None}
        stages = self._cut_into_stages(model)
        count, known = self._stages.world_size, self._partition
        for tensor, spec in pipeline_specs(stages, count, known, self._of_stage, cuts):
            known.decide(tensor, spec)
        owned = [[each for each in unit.parameters if self._is_owned(each)] for unit in stages.units]
        return [members for unit in owned for members in by_kind(unit)]

    def _is_owned(self, tensor: torch.Tensor) -> bool:
        return stage_of(tensor, self._partition, self._of_stage) != -1

    def install(self, patches: Patches, context: Context) -> None:
        super().install(patches, context)
        self._install_refusals(patches)

    @contextmanager
    def calling(self, module: torch.nn.Module) -> Iterator[None]:
        script = self._script
        if script is not None and script.region is Region.REPLICATED:
            self._cut_new(module)
            with self._calling_whole(module):
                yield
            return
        with super().calling(module):
            yield

    @contextmanager
    def backward(self) -> Iterator[None]:
        with super().backward():
            yield
        self.pipeline.complete()

    def scheduled(self, model: torch.nn.Module, loss_fn: Any, attempt: Any) -> Any:
        if self._plan.compute.schedule != "1f1b":
            return None
        self._steps.append(
            OneForwardOneBack(self.pipeline, self._everybody, self._note, model, loss_fn, attempt)
        )
        return self._steps[-1]

    def notes(self) -> list[str]:
        asked = self._plan.item("schedule")
        notes = [*super().notes(), *self._uncut.notes()]
        if self._plan.compute.schedule != "1f1b" or any(each.took_effect for each in self._steps):
            return notes
        why = (
            "the model runs in parts, its stages are not called in the order of ranks, or its inputs require "
            "gradients; see docs/pipeline.md"
            if self._steps
            else "the script calls loss.backward() itself, when all micro-batches have come through; train "
            "by ronde.Step(model, optimizer, loss_fn)"
        )
        return [*notes, f"{asked} had no effect, schedule=gpipe was run: {why}"]

    def stages(self, module: torch.nn.Module) -> Stages:
        found = self._known.get(module)
        if found is None or not found.stands(module):
            found = self._cut_into_stages(module)
        return found

    def _cut_into_stages(self, model: torch.nn.Module) -> Stages:
        stages = stages_of(model, self._stages.world_size, self._partition, self._of_stage)
        self._known[model] = stages
        return stages

    def leaf(self, parameter: torch.Tensor) -> torch.Tensor | None:
        block = self._blocks.block(parameter)
        if block is None:
            return None
        return self._blocks.demand(block, gradient=parameter.requires_grad)

    def stand_in(self, parameter: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor | None:
        block = self._blocks.block(parameter)
        if self._stand_ins is None or block is None or block.spec.cut is None or not leaf.numel():
            return leaf if leaf.shape == parameter.shape else None
        return self._stand_ins.over(block, leaf)

    def run(self, unit: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.recompute is None:
            output = forward(*args, **kwargs)
        else:
            output = self.recompute.carry_out(unit, forward, args, kwargs)
        return output if self._stand_ins is None else self._stand_ins.whole(output)

    @contextmanager
    def watched(self) -> Iterator[None]:
        by_units = nullcontext() if self.recompute is None else self.recompute.by_calls(False)
        with self._cut.watched(_used_elsewhere), by_units:
            yield

    def share(self, parameter: torch.Tensor, module: torch.nn.Module) -> None:
        self._blocks.forget(parameter)
        self._partition.decide(parameter, None)
        self._known.clear()
        self._cut.dissolve(parameter)
        self._adopt(parameter)
        self._cut_new(module)  # those that were in one unit with it
        self._cut.rest(keep_last=False)

    def _install_refusals(self, patches: Patches) -> None:
        """What one rank alone would hear of."""
        plain_hook: Any = torch.Tensor.register_post_accumulate_grad_hook
        asked = self._plan.item("pipeline")

        def register_post_accumulate_grad_hook(tensor: torch.Tensor, hook: Any) -> Any:
            if self._is_cut(tensor):
                raise UsageError(
                    f"a hook was registered on the gradient of a parameter of shape {list(tensor.shape)}, "
                    f"which under {asked} one rank alone computes; step the optimizer after backward, or "
                    f"take a plan without pipeline"
                )
            return plain_hook(tensor, hook)

        def refuse(inputs: Any) -> None:
            given = [inputs] if isinstance(inputs, torch.Tensor) else inputs
            for each in given if isinstance(given, (list, tuple)) else ():
                if isinstance(each, torch.Tensor) and self._is_cut(each):
                    raise UsageError(
                        f"gradients of single parameters were asked for (shape {list(each.shape)}), which "
                        f"under {asked} one rank alone computes; use loss.backward(), or a plan without "
                        f"pipeline"
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

        patches.set(
            torch.Tensor,
            "register_post_accumulate_grad_hook",
            modes_first(register_post_accumulate_grad_hook),
        )
        patches.layer(GRAD, "model parallel", around_grad)
        patches.layer(BACKWARD, "model parallel", around_backward)


def _used_elsewhere(parameter: torch.Tensor) -> NoReturn:
    raise UsedElsewhere(parameter)
