"""A plan in words: values, update rule, exactness, equivalent systems."""

from __future__ import annotations

import dataclasses

from ronde.plan.algorithm import choose, inside_model
from ronde.plan.axes import AXES
from ronde.plan.communication import Communication
from ronde.plan.compute import Compute
from ronde.plan.data import Data
from ronde.plan.key import keys_of
from ronde.plan.mesh import Mesh
from ronde.plan.plan import Plan, expand
from ronde.plan.preset import PRESETS, Preset
from ronde.plan.schedule import drawn
from ronde.plan.strategies import WORK, strategies_of

__all__ = ["Description", "describe"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """Description printed by `ronde plan show`.

    Attributes:
        plan: the canonical spelling.
        presets: names of the presets that this plan equals.
        algorithm: algorithm that sums gradients, with the reason, where the ranks are on this host's CPU.
        holds: state that a rank keeps between steps, and the parts of it that are exchanged, and when.
        axes: name and items of each axis, in order; `data` is a number where the number of ranks is known.
        schedule: drawing of a pipeline's micro-batches over time; "" without a pipeline.
        update_rule: the equations by which parameters change.
        exact: whether parameters equal the single-device ones.
        exactness: a sentence that says why or why not.
        equals: systems that train by this plan.
        strategies: strategies that carry the plan out for models, in order, each with its work.
    """

    plan: str
    presets: tuple[str, ...]
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    algorithm: str
    holds: str
    schedule: str
    update_rule: str
    exact: bool
    exactness: str
    equals: tuple[str, ...]
    strategies: tuple[str, ...]


def describe(plan: Plan, ranks: int | None = None) -> Description:
    """Describe a plan, on `ranks` ranks if that is given."""
    effective = plan if ranks is None else plan.for_ranks(ranks)
    presets = tuple(
        preset for preset in PRESETS.values() if _family(expand(preset.name)) == _family(effective)
    )
    return Description(
        plan=str(plan),
        presets=tuple(preset.name for preset in presets),
        axes=tuple(
            (name, tuple(effective.item(key.name) for key in keys_of(axis))) for name, axis in AXES.items()
        ),
        algorithm=_algorithm(effective, ranks),
        holds=_holds(effective, ranks),
        schedule=_schedule(effective) if ranks != 1 else "",
        update_rule=f"{_update(effective)}\n{_gradient(effective)}",
        exact=effective.exact,
        exactness=_exactness(effective),
        equals=_systems(effective, presets),
        strategies=tuple(
            f"{name}: {WORK[name]}" for name in strategies_of(plan, ranks or 2 * plan.mesh.model_ranks)
        ),
    )


def _strategies(plan: Plan, ranks: int | None) -> tuple[str, ...]:
    """Return the strategies, each with its work.

    If the number of ranks is unknown, they are the ones for two replicas of the model.
    """
    names = strategies_of(plan, ranks or 2 * plan.mesh.model_ranks)
    return tuple(f"{name}: {WORK[name]}" for name in names)


def _algorithm(plan: Plan, ranks: int | None) -> str:
    """Describe the algorithm on one host; if `ranks` is unknown, the rule."""
    asked = plan.communication.algorithm
    if ranks == 1:
        return "nothing travels, there is one rank"
    if ranks is not None and plan.mesh.data == 1:
        return inside_model(choose("auto", (ranks,)))
    if ranks is not None:
        return f"on one host: {choose(asked, (ranks,))}"
    if asked != "auto":
        return f"{asked}, if the hosts allow it"
    return (
        "on one host shared memory; on several with several ranks on some: shared memory within each and a\n"
        "ring across hosts; else the backend's own"
    )


def _holds(plan: Plan, ranks: int | None) -> str:
    """Describe the state that each of W ranks keeps, and its exchanges."""
    kept = _kept(plan) if ranks != 1 else "one rank keeps everything"
    if plan.state.cuts_parameters and (ranks != 1 or plan.state.offloads_parts):
        kept += (
            ";\nuntil a model is first called every rank has it whole, but for one that is built\n"
            "inside `with ronde.deferred():` or gets its memory by `to_empty`: that is cut as it is made"
        )
    if plan.state.offloads_parts:
        return (
            f"{kept};\nall of that lies in host memory, where the optimizer's step runs on the CPU;\n"
            "units are copied to the device when they are used, gradients to the host as backward runs"
        )
    if plan.state.offloads_optimizer:
        return (
            f"{kept};\nthe optimizer's state lies in host memory, where its step runs on the CPU;\n"
            "for it gradients and parameters are copied to the host, and parameters back to the device"
        )
    return kept if ranks != 1 else f"{kept}, and nothing moves"


def _kept(plan: Plan) -> str:
    """Describe the state that each of several ranks keeps.

    That is its part of the model, by each axis, and its part of the state.
    """
    parts = _parts_of_model(plan)
    if not parts:
        return _kept_of_whole(plan)
    kept = (
        f"each rank keeps {', '.join(parts)},\n"
        "gradients and optimizer state of that, and all that is not cut;\n"
        "`ronde plan show --script` lists what is cut"
    )
    if plan.state.placement == "replicated":
        return kept
    return f"{kept};\nof what W ranks have alike,\n{_kept_of_whole(plan)}"


def _parts_of_model(plan: Plan) -> tuple[str, ...]:
    """Return the parts of a model that each cutting axis leaves to one rank."""
    mesh = plan.mesh
    parts = {
        "the parameters of its stage": mesh.pipeline,
        f"1/{mesh.tensor} of the matrices that are cut": mesh.tensor,
    }
    if mesh.expert > 1:
        parts[f"1/{mesh.expert * mesh.tensor} of the experts of each mixture"] = mesh.expert
    return tuple(part for part, degree in parts.items() if degree > 1)


def _kept_of_whole(plan: Plan) -> str:
    """Describe the part of an uncut model that a rank keeps."""
    match plan.state.placement:
        case "replicated":
            return "each rank keeps everything"
        case "zero1":
            return (
                "each rank keeps all parameters and gradients, and 1/W of the optimizer state;\n"
                "after the step, ranks share the parameters that they have updated"
            )
        case "zero2":
            return (
                "each rank keeps all parameters, and 1/W of gradients and optimizer state;\n"
                "in backward, sums of gradients go to the rank that updates their parameters;\n"
                "after the step, ranks share the parameters that they have updated"
            )
        case "zero3":
            return (
                "each rank keeps 1/W of parameters, gradients and optimizer state;\n"
                "units of the model are gathered in forward and again in backward, two whole at a time;\n"
                "in backward, sums of gradients go to the rank that updates their parameters"
            )
        case "central":
            return (
                "rank 0 keeps everything, other ranks nothing;\n"
                "units of the model come from rank 0 in forward and again in backward, two whole at a time;\n"
                "in backward, sums of gradients go to rank 0"
            )
        case "server":
            return "servers keep everything; workers fetch parameters and send gradients"


def _update(plan: Plan) -> str:
    """Return the update rule: the change of parameters w at step t.

    U is the script's own optimizer, r a rank, W the number of ranks.
    """
    alone = "w_r = U(w_r, g_r) on each rank"
    arriving = "w = U(w, g_r at the w that rank r read last) as each gradient arrives"
    match plan.update.rule:
        case "sync":
            return f"w[t+1] = U(w[t], g[t]) once per step, {_owner(plan)}"
        case "local":
            interval = plan.item("every") if plan.update.every is not None else "adaptive=true"
            return f"{alone}; each k steps w_r = mean over ranks ({interval})"
        case "decentralized":
            peers = "all ranks" if plan.update.peers == "all" else "r and one other rank, shifting each step"
            return f"w_r[t+1] = U(mean of w[t] over {peers}, g_r[t])"
        case "async-average":
            return f"{alone}; w_r moves to the mean over ranks when a background average arrives"
        case "async":
            return f"{arriving} ({plan.item('optimizer-on')})"
        case "bounded" if plan.state.placement != "server":
            behind = (
                f"rows of tables may lack the last s steps where they are read ({plan.item('staleness')})"
            )
            return f"w[t+1] = U(w[t], g[t]) once per step, {_owner(plan)};\n{behind}"
        case "bounded":
            lead = f"no rank leads the slowest by more than s steps ({plan.item('staleness')})"
            return f"{arriving} ({plan.item('optimizer-on')})\n{lead}"
        case "geo":
            return f"{alone}; each k steps the server's w += (w_r's change) / W ({plan.item('every')})"


def _owner(plan: Plan) -> str:
    """Name the ranks or servers that apply a synchronous update."""
    match plan.state.placement:
        case "replicated":
            return "alike on every rank"
        case "zero1" | "zero2" | "zero3":
            return "each rank its part"
        case "central":
            return "on rank 0"
        case "server":
            return "on the servers" if plan.update.optimizer_on == "server" else "alike on every worker"


def _gradient(plan: Plan) -> str:
    """Define the g of the update rule, and the error of its encoding."""
    what = "g = gradient of the loss over the global batch (rank r computes its rows' part, g_r)"
    if plan.communication.compressor == "none":
        return what
    feedback = "; what encoding lost is added to the next" if plan.communication.error_feedback else ""
    return f"{what}\n{_message(plan)} travels encoded ({plan.item('compressor')}){feedback}"


def _message(plan: Plan) -> str:
    """Name the value that ranks send each other."""
    if plan.communication.compressed == "momentum":
        return "the optimizer's momentum"
    match plan.update.rule:
        case "sync" | "async" | "bounded":
            return "g_r"
        case "local" | "decentralized" | "async-average":
            return "w_r"
        case "geo":
            return "w_r's change"


def _exactness(plan: Plan) -> str:
    if not plan.exact:
        because = " and by ".join(plan.inexact_because)
        return f"the update is changed by {because};\nthe reference is the same algorithm in one process"
    draws = {
        "global": "the single-device ones",
        "per-rank": "independent across ranks",
        "auto": "the single-device ones on CPU, independent across ranks on CUDA",
    }
    rounding = "" if plan.compute.precision == "fp32" else f" in {plan.item('precision')}"
    return (
        f"the single-device parameters{rounding}, up to floating-point reordering;\n"
        f"random draws inside the model: {draws[plan.data.rng]} ({plan.item('rng')})"
    )


def _family(plan: Plan) -> Plan:
    """Reset the values of a plan that other systems leave to the user.

    These are degrees, sizes, offload, compute and data values.
    """
    update = dataclasses.replace(
        plan.update,
        every=None if plan.update.every is None else 1,
        staleness=None if plan.update.staleness is None else 0,
    )
    communication = dataclasses.replace(plan.communication, bucket_mb=Communication().bucket_mb)
    state = dataclasses.replace(plan.state, offload="none")
    return dataclasses.replace(
        plan,
        mesh=Mesh(),
        state=state,
        communication=communication,
        update=update,
        compute=Compute(),
        data=Data(),
    )


def _systems(plan: Plan, presets: tuple[Preset, ...]) -> tuple[str, ...]:
    """Return systems that shard data by this plan, or models by its degrees."""
    systems = [system for preset in presets for system in preset.equals]
    if plan.state.offloads_parts:
        systems.append(f"{plan.item('offload')}: PyTorch FSDP's CPUOffloadPolicy, DeepSpeed ZeRO-Infinity")
    elif plan.state.offloads_optimizer:
        systems.append(f"{plan.item('offload')}: DeepSpeed ZeRO-Offload")
    if plan.mesh.tensor > 1:
        systems.append(f"{plan.item('tensor')}: Megatron-LM, OneFlow SBP")
    if plan.mesh.pipeline > 1:
        systems.append(f"{plan.item('pipeline')}: {_pipeline_systems(plan)}")
    if plan.mesh.context > 1:
        systems.append(f"{plan.item('context')}: Megatron-LM context parallelism")
    if plan.mesh.expert > 1:
        systems.append(f"{plan.item('expert')}: GShard, DeepSpeed-MoE")
    return tuple(systems)


def _schedule(plan: Plan) -> str:
    compute = plan.compute
    return drawn(plan.mesh.pipeline, compute.micro_batches, compute.schedule or "gpipe")


def _pipeline_systems(plan: Plan) -> str:
    match plan.compute.schedule:
        case "gpipe" | None:
            return "GPipe, torchgpipe"
        case "1f1b":
            return "PipeDream-flush, OneFlow stages, Whale"
        case "interleaved":
            return "Megatron-LM interleaved stages"
        case "zero-bubble":
            return "zero-bubble pipelines"
