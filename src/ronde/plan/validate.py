"""Validation of plans: rules across axes, number of ranks, unbuilt combinations."""

from __future__ import annotations

from collections.abc import Iterator

from ronde.errors import PlanError
from ronde.plan.contradiction import contradiction as _contradiction
from ronde.plan.contradiction import unused as _unused
from ronde.plan.mesh_rules import not_built_together, without_other_rows
from ronde.plan.validate_among_ranks import among_ranks
from ronde.plan.validate_messages import messages, not_combined
from ronde.plan.values import Values

__all__ = ["check", "contradictions", "validate"]

_AMONG_RANKS = ("local", "decentralized", "async-average")
_AT_SERVERS = ("async", "bounded", "geo")


def validate(plan: Values, world_size: int | None = None, device: str | None = None) -> list[str]:
    """Return every error of `plan`, each in a sentence with its remedy.

    `world_size` is the number of ranks, `device` where they compute ("cpu", "cuda"), as far as that is
    known. One rank switches the mesh off, so no degree is compared with it.
    """
    return [*_not_built(plan), *contradictions(plan, world_size, device)]


def contradictions(plan: Values, world_size: int | None = None, device: str | None = None) -> list[str]:
    """Return the errors of `validate`, except for combinations that are only not built yet."""
    errors = list(_refinements(plan))
    errors += _update_and_state(plan)
    errors += messages(plan, world_size)
    errors += among_ranks(plan, world_size)
    errors += _without_effect(plan, device)
    errors += _offload(plan, world_size, device)
    errors += _mesh(plan, world_size)
    errors += without_other_rows(plan, world_size)
    return errors


def check(plan: Values, world_size: int | None = None, device: str | None = None) -> None:
    """Raise one `PlanError` with all that `validate` finds."""
    errors = validate(plan, world_size, device)
    if errors:
        raise PlanError("; ".join(errors))


def _not_built(plan: Values) -> Iterator[str]:
    yield from not_combined(plan)
    yield from not_built_together(plan)


def _has_tables_on_servers(plan: Values) -> bool:
    """Return whether servers have the rows of tables, and ranks all else."""
    state = plan.state
    return state.placement != "server" and state.sparse == "sharded" and state.servers is not None


def _refinements(plan: Values) -> Iterator[str]:
    """Check keys that refine other keys, and values that need a refining key."""
    rule = plan.update.rule
    if plan.update.every is not None and rule not in ("local", "geo"):
        yield _contradiction(plan.item("every"), plan.item("update"), f"update=local,{plan.item('every')}")
    if plan.update.adaptive and rule != "local":
        yield _contradiction("adaptive=true", plan.item("update"), "update=local,adaptive=true")
    if plan.update.peers is not None and rule != "decentralized":
        yield _contradiction(
            plan.item("peers"), plan.item("update"), f"update=decentralized,{plan.item('peers')}"
        )
    if plan.update.staleness is not None and rule != "bounded":
        remedy = f"state=server,update=bounded,{plan.item('staleness')}"
        yield _contradiction(plan.item("staleness"), plan.item("update"), remedy)
    if rule == "local" and plan.update.every is None and not plan.update.adaptive:
        yield "update=local needs every=K or adaptive=true; nearest legal: update=local,every=8 [R213]"
    if rule == "geo" and plan.update.every is None:
        yield "update=geo needs every=K; nearest legal: update=geo,every=100 [R213]"
    if rule == "decentralized" and plan.update.peers is None:
        yield "update=decentralized needs peers; nearest legal: update=decentralized,peers=all [R213]"
    if rule == "bounded" and plan.update.staleness is None:
        yield "update=bounded needs staleness=S; nearest legal: update=bounded,staleness=4 [R213]"
    if plan.communication.compressor == "none":
        if plan.communication.error_feedback:
            remedy = "compressor=topk,error-feedback=true"
            yield _contradiction("error-feedback=true", "compressor=none", remedy)
        if plan.communication.compressed != "gradient":
            remedy = f"compressor=int8,{plan.item('compressed')}"
            yield _contradiction(plan.item("compressed"), "compressor=none", remedy)
    if plan.compute.schedule is not None and plan.mesh.pipeline == 1:
        yield _contradiction(plan.item("schedule"), "pipeline=1", f"pipeline=2,{plan.item('schedule')}")
    if plan.compute.schedule == "zero-bubble" and plan.compute.recompute != "none":
        remedy = f"{plan.item('pipeline')},schedule=1f1b,{plan.item('recompute')}"
        yield _contradiction("schedule=zero-bubble", plan.item("recompute"), remedy)
    if plan.mesh.context_attention != "auto" and plan.mesh.context == 1:
        item = plan.item("context-attention")
        yield _contradiction(item, "context=1", f"context=2,{item}")
    if plan.mesh.sequence_parallel != "auto" and plan.mesh.tensor == 1:
        item = plan.item("sequence-parallel")
        yield _contradiction(item, "tensor=1", f"tensor=2,{item}")
    if plan.compute.compile and plan.compute.recompute != "none":
        remedy = f"compile=false,{plan.item('recompute')}"
        yield _contradiction("compile=true", plan.item("recompute"), remedy)


def _update_and_state(plan: Values) -> Iterator[str]:
    """Check that the update is applied where the state lives."""
    rule, state = plan.item("update"), plan.item("state")
    bounds_tables = plan.update.rule == "bounded" and _has_tables_on_servers(plan)
    if plan.update.rule in _AT_SERVERS and plan.state.placement != "server" and not bounds_tables:
        yield _contradiction(rule, state, f"state=server,{rule}")
    if plan.update.rule in _AMONG_RANKS and plan.state.placement != "replicated":
        yield _contradiction(rule, state, f"state=replicated,{rule}")
    if plan.in_local_view and plan.compute.micro_batches > 1:
        item = plan.item("micro-batches")
        yield _contradiction(rule, item, f"{state},update=sync,{item}")
    at_servers = plan.update.rule in ("async", "bounded") and not bounds_tables
    if at_servers and plan.update.optimizer_on == "worker":
        remedy = f"state=server,{rule},optimizer-on=server"
        yield _contradiction("optimizer-on=worker", rule, remedy)
    if plan.compute.precision == "fp16" and plan.state.placement == "server":
        yield _contradiction("precision=fp16", state, f"precision=bf16,{state}")
    if plan.update.optimizer_on == "server" and plan.state.placement != "server":
        yield _contradiction("optimizer-on=server", state, "state=server,optimizer-on=server")
    if plan.update.rule == "geo" and plan.update.optimizer_on == "server":
        yield _contradiction("optimizer-on=server", "update=geo", "update=geo,optimizer-on=worker")
    if plan.state.servers is not None and plan.state.placement != "server" and plan.state.sparse != "sharded":
        item = plan.item("servers")
        yield _contradiction(item, f"{state},{plan.item('sparse')}", f"state=server,{item}")
    if plan.state.sparse == "sharded" and plan.state.placement == "central":
        yield _contradiction("sparse=sharded", state, "state=replicated,sparse=sharded")


def _without_effect(plan: Values, device: str | None) -> Iterator[str]:
    """Yield keys without effect on servers, or where ranks train by themselves."""
    if plan.state.placement == "server":
        yield from _on_servers(plan, device)
    if not plan.in_local_view:
        return
    rule = plan.item("update")
    if plan.communication.bucket_mb is not None:
        why = "each rank pushes its gradients when it steps" if plan.is_local else "parameters travel at once"
        yield _unused(plan, "bucket-mb", rule, why)
    if plan.data.rng == "global":
        yield _unused(plan, "rng", rule, "each rank trains by itself, and draws for its own rows")
    if plan.data.batch_dim is not None:
        yield _unused(
            plan, "batch-dim", rule, "each rank loads some samples of every batch, which is not cut"
        )
    if plan.data.loading == "full":
        yield _unused(plan, "loading", rule, "each rank loads only the samples that it trains on")


def _on_servers(plan: Values, device: str | None) -> Iterator[str]:
    state, rule = plan.item("state"), plan.item("update")
    if plan.communication.algorithm != "auto":
        yield _unused(plan, "algorithm", state, "gradients go to servers, not around among ranks")
    if plan.state.sparse == "sharded":
        yield _unused(plan, "sparse", state, "servers have the rows of tables")
    at_servers = plan.update.optimizer_on == "server"
    if plan.state.offload != "none" and (at_servers or plan.is_local) and device != "cpu":
        why = "servers have the optimizer's state" if at_servers else "each rank keeps its optimizer as it is"
        yield _unused(plan, "offload", state if at_servers else rule, why)


def _offload(plan: Values, world_size: int | None, device: str | None) -> Iterator[str]:
    """Check that offloading has state to move, and other memory to move it to."""
    state, item = plan.state, plan.item("offload")
    if not state.offloads_optimizer:
        return
    if device == "cpu":
        # Checked regardless of other errors, because no plan with this value would be valid.
        yield (
            f"{item} moves state from a CUDA device to host memory, and these ranks are on the CPU: their "
            f"state is there already; leave {item} out [R212]"
        )
    elif state.offloads_parts and not state.cuts_parameters:
        yield _contradiction(item, plan.item("state"), f"state=zero3,{item}")
    elif state.placement == "replicated" and world_size is not None and world_size > 1:
        yield _contradiction(item, f"{plan.item('state')} on {world_size} ranks", f"state=zero1,{item}")


def _mesh(plan: Values, world_size: int | None) -> Iterator[str]:
    """Check that the degrees multiply to the number of ranks.

    Experts cut the ranks of data and context.
    """
    if world_size == 1:
        return
    mesh = plan.mesh
    data = mesh.data
    if world_size is not None:
        ranks = f"{world_size} ranks"
        cut = [plan.item(name) for name in ("tensor", "pipeline", "context") if plan.value(name) != 1]
        if world_size % mesh.model_ranks:
            nearest = _nearest_multiple(world_size, mesh.model_ranks)
            yield _contradiction(",".join(cut), ranks, f"{nearest} ranks")
        elif data is None:
            data = world_size // mesh.model_ranks
        elif data * mesh.model_ranks != world_size:
            remedy = f"data={world_size // mesh.model_ranks}, or data=auto"
            yield _contradiction(",".join([plan.item("data"), *cut]), ranks, remedy)
    rows = None if data is None else data * mesh.context
    if rows is not None and rows % mesh.expert:
        nearest = max(degree for degree in range(1, mesh.expert + 1) if rows % degree == 0)
        beside = f"data={data}" if mesh.context == 1 else f"data={data},{plan.item('context')}"
        yield _contradiction(plan.item("expert"), beside, f"expert={nearest}")


def _nearest_multiple(number: int, divisor: int) -> int:
    """Return the multiple of `divisor` nearest to `number`, at least `divisor`."""
    return max(1, round(number / divisor)) * divisor
