"""`pipeline=N`: a model cut into stages of one rank or tensor group each."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, final

import torch

from ronde.comm.process_group import Comm
from ronde.modules.calls import Calls
from ronde.parallel.context.sequences import Sequences
from ronde.parallel.expert.features import FeatureExperts
from ronde.parallel.holding import holding
from ronde.parallel.pipeline.gradients import refuse_lone_gradients
from ronde.parallel.pipeline.loss_inside_model import LossInside
from ronde.parallel.pipeline.micro_batch import UsedElsewhere
from ronde.parallel.pipeline.pipeline import Pipeline
from ronde.parallel.pipeline.schedules import StepByTurns
from ronde.parallel.pipeline.stage_outputs import StageOutputs
from ronde.parallel.pipeline.unit_costs import UnitCosts
from ronde.parallel.tensor.cut_parameters import StandIns
from ronde.patching.patches import Patches
from ronde.plan.compute import Schedule
from ronde.plan.cuts import cuts_by_pattern
from ronde.plan.schedule import chunks_of
from ronde.policies.expert import expert_specs
from ronde.policies.expert_structure import Mixture, modules_of
from ronde.policies.pipeline import pipeline_specs, sparse_weights, stage_of, stages_of
from ronde.policies.stages import Stages
from ronde.policies.tensor_structure import placements
from ronde.shards.dim_cut import DimCut
from ronde.shards.partition import Partition, by_kind
from ronde.strategies.block_ranks import BlockRanks
from ronde.strategies.blocks import Cutting, ModelBlocks, Reduced
from ronde.strategies.mixture_calls import MixtureCalls, MixtureRanks
from ronde.strategies.own_mixtures import OwnMixtures
from ronde.strategies.session_parts import SessionParts
from ronde.strategies.strategy import Strategy
from ronde.strategies.uncut_models import UncutModels
from ronde.tensor.context import Context, Region

__all__ = ["PipelineGroups", "PipelineStrategy"]


@dataclass(frozen=True, kw_only=True)
class PipelineGroups:
    """Process groups of a rank with one stage, or several chunks, of a model.

    Attributes:
        calls: ranks that have the same blocks of other stages, for calls of the model.
        outputs: the same ranks, for collectives of the script on outputs.
        gradients: the same ranks, for gradients; None where a rank has a single chunk.
        stage: the ranks that have this stage, or blocks of it.
    """

    calls: Comm
    outputs: Comm
    gradients: Comm | None
    stage: Comm


@final
class PipelineStrategy(Strategy):
    """Runs models with one stage, or blocks of one, on this rank.

    Args:
        ranks: process groups; `group` has all other blocks, of this stage and of others.
        along: process groups along the pipeline, and of a stage.
        tensor: ranks that have other blocks of the same matrices; None where matrices are whole.
        sequences: executor that cuts sequences inside of calls; None where they are whole.
        of_mixtures: process groups of a stage's mixtures; None where experts are not spread.

    Attributes:
        pipeline: executor of a model's call.
    """

    name = "pipeline"

    def __init__(
        self,
        parts: SessionParts,
        ranks: BlockRanks,
        along: PipelineGroups,
        tensor: Comm | None = None,
        sequences: Sequences | None = None,
        of_mixtures: MixtureRanks | None = None,
    ) -> None:
        plan = parts.plan
        self._plan, self._script, self._note = plan, parts.context, parts.note
        self._recompute, self._reducer = parts.recompute, parts.reducer
        self._partition = Partition()
        pipeline = along.calls
        self._of_stage = ranks.group.world_size // pipeline.world_size
        self._override = cuts_by_pattern(plan.mesh.cuts)
        self._uncut = UncutModels(plan.item("tensor"))
        item = plan.item("pipeline")
        # A stage uses whole parameters while no other stage does.
        cutting = Cutting(
            partition=self._partition,
            find=self._find,
            item=item,
            reduces=Reduced.ALL if of_mixtures is None else Reduced.COPIES,
            cuts_whole=False,
        )
        found = self._blocks = ModelBlocks(parts, ranks, cutting)
        self.state = found.state
        self._mixtures: MixtureCalls | None = None
        self._own: OwnMixtures | None = None
        if of_mixtures is None:
            gathered, within = self.state.gathered, ranks.sequences
            self._own = OwnMixtures(
                parts, item, gathered, together=along.stage, sequences=within, in_stages=True
            )
        else:
            self._mixtures = MixtureCalls(parts, of_mixtures, found, self._inside)
        self._tensor = tensor
        self._stand_ins: StandIns | None = None
        if tensor is not None:
            within = Context.within_rows(tensor, ranks.sequences)
            way = plan.mesh.sequence_parallel
            # Units exchange whole values, so a sharded residual would be cut and gathered in each unit.
            way = "off" if way == "auto" else way
            self._stand_ins = StandIns(within, way, found.gradients, found.parameters.latest)
        self._known: weakref.WeakKeyDictionary[torch.nn.Module, Stages] = weakref.WeakKeyDictionary()
        self._schedule: Schedule = plan.compute.schedule or "gpipe"
        self.pipeline = Pipeline(
            pipeline,
            plan.compute.micro_batches,
            self,
            self._schedule,
            StageOutputs(along.outputs, sequences),
            sequences,
            along.gradients,
        )
        self._stages, self._everybody = pipeline, ranks.everybody
        self._costs = UnitCosts(ranks.everybody)
        self._steps: list[StepByTurns] = []

    def _find(self, model: torch.nn.Module) -> list[list[torch.Tensor]]:
        """Decide on the parameters of a model; each single-stage module is a unit."""
        sparse = sparse_weights(model)
        for weight in sparse:
            self._reducer.adopt_sparse(weight)
        cuts: dict[int, DimCut] = {}
        if self._tensor is not None:
            found = placements(model, self._tensor.world_size, self._override)
            self._uncut.tell(model, found)
            cuts = {id(each.parameter): each.cut for each in found if each.cut is not None}
        self._costs.agree(model)
        stages = self._cut_into_stages(model)
        count, known = self._stages.world_size, self._partition
        experts = list(self._spread_experts(model, stages))
        whole = {id(weight) for weight in sparse}
        for tensor, spec in pipeline_specs(stages, count, known, self._of_stage, cuts, whole):
            known.decide(tensor, spec)
        # Stages are interleaved, so tensors that are spread evenly at first do not all go to one rank first.
        owned = [[each for each in unit.parameters if self._is_owned(each)] for unit in stages.by_turns]
        return [*(members for unit in owned for members in by_kind(unit)), *experts]

    def _spread_experts(self, model: torch.nn.Module, stages: Stages) -> Iterator[list[torch.Tensor]]:
        """Decide on the experts of single-stage mixtures; each expert is a unit."""
        for mixture in self._mixtures_of(model):
            stage = stages.stage_of(mixture.parameters[0][0])
            if self._mixtures is None or stage is None:
                continue
            self._mixtures.take(mixture)
            for tensor, spec in expert_specs(mixture, self._of_stage, stage, self._stages.world_size):
                self._partition.decide(tensor, spec)
            yield from mixture.units

    def _mixtures_of(self, model: torch.nn.Module) -> list[Mixture]:
        """Return the mixtures of a model, which are not divided."""
        known = self._own or self._mixtures
        return [] if known is None else known.found_in(model)

    def _is_owned(self, tensor: torch.Tensor) -> bool:
        """Return whether a whole stage has a parameter, outside of spread experts."""
        alone = self._mixtures is not None and self._mixtures.has(tensor)
        return not alone and stage_of(tensor, self._partition, self._of_stage) != -1

    def install(self, patches: Patches) -> None:
        self._blocks.install(patches)
        if self._mixtures is not None:
            self._mixtures.install(patches)
        if self._own is not None:
            self._own.install(patches)
        if self._stand_ins is not None:
            FeatureExperts().install(patches)
        refuse_lone_gradients(patches, self._blocks.has, self._plan.item("pipeline"))

    @contextmanager
    def around_call(self, module: torch.nn.Module) -> Iterator[None]:
        blocks = self._blocks
        if self._script.region is Region.OBSERVED and self._is_new(module):
            with self._costs.counting(module):
                yield
            blocks.cut_new(module)
            return
        blocks.cut_new(module)
        apart = self._is_apart(module)
        whole = apart or self._script.region is Region.REPLICATED or blocks.computes_whole
        with (
            nullcontext() if self._mixtures is None or not apart else self._mixtures.left_out(),
            blocks.whole_call(module) if whole else blocks.cut_call(module),
        ):
            yield

    def _is_new(self, module: torch.nn.Module) -> bool:
        """Return whether a model can be cut after its first call.

        False if it is cut already, or if experts are spread: mixtures are tried in that call, cut as they
        will be.
        """
        parameters = list(module.parameters())
        known = self._costs.knows(module) or any(map(self._partition.is_decided, parameters))
        return not known and self._mixtures is None and not self._blocks.are_in_parts(parameters)

    def must_see(self, module: torch.nn.Module) -> bool:
        """Return whether an observed call is to try mixtures of a module."""
        known = self._own or self._mixtures
        return known is not None and known.are_untried(module)

    def _is_apart(self, module: torch.nn.Module) -> bool:
        """Return whether a module is or calls a mixture, or is part of one.

        A model in parts calls it then, so no stage has it for itself.
        """
        if self._mixtures is None:
            return False
        return self._mixtures.is_part(module) or self._mixtures.is_called_by(
            unit.module for unit in self._stages_of(module).units
        )

    @contextmanager
    def around_backward(self) -> Iterator[None]:
        with self._blocks.around_backward():
            yield
        self.pipeline.complete()

    def before_first_step(self, optimizer: Any) -> None:
        """Skip the note: blocks are cut for optimizers of any kind."""

    def by_turns(self, model: torch.nn.Module, loss_fn: Any, attempt: Any) -> StepByTurns | None:
        """Create a step that runs forward and backward in the order of a schedule.

        None for gpipe, where the script calls backward.

        Args:
            attempt: callback before each attempt of a step; it returns a function that undoes an attempt that
                does not count.
        """
        if self._schedule == "gpipe":
            return None
        asked = self._plan.item("schedule")
        step = StepByTurns(self.pipeline, self._everybody, self._note, asked, model, loss_fn, attempt)
        self._steps.append(step)
        return step

    def with_loss(self, calls: Calls, attempt: Any) -> LossInside:
        """Create the executor of models that compute their loss.

        Args:
            attempt: callback as in `by_turns`.
        """
        again = self._recompute
        return LossInside(
            calls,
            lambda layers, loss_fn: self.by_turns(layers, loss_fn, attempt),
            nullcontext if again is None else lambda: again.by_calls(False),
        )

    def notes(self) -> list[str]:
        asked, notes = self._plan.item("schedule"), self._uncut.notes()
        notes += [] if self._mixtures is None else self._mixtures.notes()
        for model in [step.model for step in self._steps if step.took_effect]:
            if self.stages(model).chunks < chunks_of(self._schedule):
                notes.append(
                    f"steps of {type(model).__name__} run schedule=1f1b instead of {asked}: it has fewer "
                    f"units than there are chunks, or was called before its ronde.Step was [R224]"
                )
        if self._schedule == "gpipe" or any(each.took_effect for each in self._steps):
            return notes
        why = (
            "the model runs in parts, its stages are not called in the order of ranks, its inputs require "
            "gradients, or it holds a ronde.EmbeddingTable; see docs/reference/cut-models.md"
            if self._steps
            else "the script computes its loss when all micro-batches have come through; train by "
            "ronde.Step(model, optimizer, loss_fn), or have the model return its loss"
        )
        return [*notes, f"{asked} had no effect, schedule=gpipe was run: {why} [R222]"]

    def stages(self, module: torch.nn.Module) -> Stages:
        return Stages((), ()) if self._is_apart(module) else self._stages_of(module)

    def _stages_of(self, module: torch.nn.Module) -> Stages:
        found = self._known.get(module)
        if found is None or not found.stands(module):
            found = self._cut_into_stages(module)
        return found

    def _cut_into_stages(self, model: torch.nn.Module) -> Stages:
        if self._mixtures is not None and self._mixtures.is_part(model):
            return Stages((), ())
        # Without a `ronde.Step` each micro-batch would go around the ranks before the next begins.
        by_turns = any(step.model is model for step in self._steps)
        chunks = chunks_of(self._schedule) if by_turns else 1
        closed = modules_of(self._mixtures_of(model))
        stages = stages_of(
            model,
            self._stages.world_size,
            self._partition,
            self._of_stage,
            chunks,
            closed,
            self._costs.of(model),
        )
        self._known[model] = stages
        return stages

    def leaf(self, parameter: torch.Tensor) -> torch.Tensor | None:
        gradients = self._blocks.gradients
        block = gradients.block(parameter)
        return None if block is None else gradients.demand(block, gradient=parameter.requires_grad)

    def stand_in(self, parameter: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor | None:
        if self._mixtures is not None and self._mixtures.has(parameter):
            return self._mixtures.stand_in(parameter, leaf)
        block = self._blocks.gradients.block(parameter)
        if self._stand_ins is None or block is None or block.spec.cut is None or not leaf.numel():
            return leaf if leaf.shape == parameter.shape else None
        return self._stand_ins.over(block, leaf)

    def _inside(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        """Put this stage's parameters into a mixture's modules inside the `with` block.

        Experts keep their own.
        """
        return holding(module, self._of_mixture)

    def _of_mixture(self, parameter: torch.Tensor) -> torch.Tensor | None:
        leaf = self.leaf(parameter)
        is_experts = self._mixtures is not None and self._mixtures.has(parameter)
        return None if leaf is None or is_experts else self.stand_in(parameter, leaf)

    def run(self, unit: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._recompute is None:
            output = forward(*args, **kwargs)
        else:
            output = self._recompute.carry_out(unit, forward, args, kwargs)
        return output if self._stand_ins is None else self._stand_ins.whole(output)

    @contextmanager
    def watched(self) -> Iterator[None]:
        by_units = nullcontext() if self._recompute is None else self._recompute.by_calls(False)
        with self._blocks.parameters.watched(_used_elsewhere), by_units:
            yield

    def share(self, parameter: torch.Tensor, module: torch.nn.Module) -> None:
        self._known.clear()
        self._blocks.make_whole(parameter, module)


def _used_elsewhere(parameter: torch.Tensor) -> NoReturn:
    raise UsedElsewhere(parameter)
