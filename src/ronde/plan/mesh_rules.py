"""Which values of other axes go together with a cut model, in this version."""

from __future__ import annotations

from collections.abc import Iterator

from ronde.plan.values import Values

__all__ = ["not_built_together"]

# With a degree that cuts the model, by key: the values that are built.
_WITH_TENSOR: dict[str, tuple[object, ...]] = {
    "state": ("replicated", "zero1"),
    "sparse": ("replicated",),
    "offload": ("none",),
    "compressor": ("none",),
    "reduction": ("mean",),
    "update": ("sync",),
    "precision": ("fp32", "tf32", "bf16"),
    "micro-batches": (1,),
    "recompute": ("none", "selective", "full"),
    "compile": (False,),
}
_NOT_COMPUTED_AGAIN: dict[str, tuple[object, ...]] = {"recompute": ("none",)}
_WITH_PIPELINE = {key: values for key, values in _WITH_TENSOR.items() if key != "micro-batches"}
_WITH_PIPELINE |= _NOT_COMPUTED_AGAIN | {"schedule": ("gpipe", "1f1b", None)}
_WITH_CONTEXT: dict[str, tuple[object, ...]] = {
    "tensor": (1,),
    "pipeline": (1,),
    "expert": (1,),
    **_WITH_TENSOR,
    **_NOT_COMPUTED_AGAIN,
    "state": ("replicated",),
}
_WITH_EXPERT: dict[str, tuple[object, ...]] = {
    "tensor": (1,),
    "pipeline": (1,),
    **_WITH_TENSOR,
    **_NOT_COMPUTED_AGAIN,
    "state": ("replicated",),
    "precision": ("fp32", "tf32"),
}


def not_built_together(plan: Values, world_size: int | None) -> Iterator[str]:
    """What is wrong with a plan that cuts the model, each in a sentence with the nearest legal plan."""
    if plan.mesh.pipeline > 1:
        yield from _among(plan, "pipeline", _WITH_PIPELINE)
        yield from _among_schedules(plan, world_size)
    elif plan.mesh.tensor > 1:
        yield from _among(plan, "tensor", _WITH_TENSOR)
    if plan.mesh.context > 1:
        yield from _among(plan, "context", _WITH_CONTEXT)
    if plan.mesh.expert > 1:
        yield from _among(plan, "expert", _WITH_EXPERT)
        data = plan.mesh.data or world_size
        if data is not None and world_size != 1 and data != plan.mesh.expert:
            yield (
                f"{plan.item('expert')} with data={data} is not available in this version, which spreads "
                f"experts over all ranks; nearest legal: data={data},expert={data}"
            )
    if plan.mesh.cuts is not None and plan.mesh.tensor == 1:
        yield (
            f"tensor-cuts says what tensor=N cuts, and tensor=1 cuts nothing; nearest legal: tensor=2,"
            f"{plan.item('tensor-cuts')}"
        )


def _among_schedules(plan: Values, world_size: int | None) -> Iterator[str]:
    """What goes with a pipeline whose micro-batches go back as they come."""
    if plan.compute.schedule != "1f1b":
        return
    stages = plan.mesh.pipeline
    data = plan.mesh.data or (1 if world_size is None else world_size // stages // plan.mesh.tensor)
    for beside in (plan.item("tensor"),) * (plan.mesh.tensor > 1) + (f"data={data}",) * (data > 1):
        yield (
            f"schedule=1f1b with {beside} is not available in this version; nearest legal: "
            f"{beside},pipeline={stages},schedule=gpipe"
        )


def _among(plan: Values, degree: str, built: dict[str, tuple[object, ...]]) -> Iterator[str]:
    for name, values in built.items():
        if plan.value(name) not in values:
            yield (
                f"{plan.item(degree)} with {plan.item(name)} is not available in this version; "
                f"nearest legal: {plan.item(degree)},{name}={_word(values[0])}"
            )


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
