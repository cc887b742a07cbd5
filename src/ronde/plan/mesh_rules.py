"""Rules about values of other axes beside a cut model: unbuilt or meaningless combinations."""

from __future__ import annotations

from collections.abc import Iterator

from ronde.plan.values import Values

__all__ = ["not_built_together", "without_other_rows"]

_AMONG_RANKS = ("local", "decentralized", "async-average")
# Values that are available beside a degree that cuts the model, by key.
_WITH_ANY: dict[str, tuple[object, ...]] = {
    "state": ("replicated", "zero1", "zero2", "zero3", "central"),
    "servers": (None,),
    "compressed": ("gradient",),
    "reduction": ("mean",),
    "update": ("sync", *_AMONG_RANKS),
    "compile": (False,),
}
_WITH_PIPELINE: dict[str, tuple[object, ...]] = {
    **_WITH_ANY,
    "schedule": ("gpipe", "1f1b", "interleaved", "zero-bubble", None),
}
_WITH_EXPERT: dict[str, tuple[object, ...]] = {
    key: values for key, values in _WITH_ANY.items() if key != "update"
}

# Keys that concern ranks with other rows of the batch: key, values that do not concern them, description.
_BETWEEN_ROWS: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("update", ("sync", "async", "bounded", "geo"), "averages parameters between"),
    ("compressor", ("none",), "encodes gradients between"),
    ("sparse", ("replicated",), "spreads table rows over"),
)


def not_built_together(plan: Values) -> Iterator[str]:
    """Yield errors of plans that cut the model, with the nearest legal plan."""
    if plan.mesh.pipeline > 1:
        yield from _among(plan, "pipeline", _WITH_PIPELINE)
    elif plan.mesh.tensor > 1:
        yield from _among(plan, "tensor", _WITH_ANY)
    if plan.mesh.context > 1:
        yield from _among(plan, "context", _WITH_ANY)
    if plan.mesh.expert > 1:
        yield from _among(plan, "expert", _WITH_EXPERT)
    if plan.mesh.cuts is not None and plan.mesh.tensor == 1:
        yield (
            f"tensor-cuts says what tensor=N cuts, and tensor=1 cuts nothing; nearest legal: tensor=2,"
            f"{plan.item('tensor-cuts')} [R225]"
        )


def without_other_rows(plan: Values, world_size: int | None) -> Iterator[str]:
    """Yield errors about values that need ranks with other rows, where data=1.

    Such values concern ranks that have other rows of the batch, and a cut model may leave none.
    """
    mesh = plan.mesh
    if mesh.expert > 1 and plan.update.rule in _AMONG_RANKS:
        yield (
            f"{plan.item('update')} lets ranks train by themselves, but under {plan.item('expert')} they "
            f"exchange tokens in each step; nearest legal: {plan.item('expert')},update=sync [R255]"
        )
    if mesh.model_ranks == 1 or world_size == 1:
        return
    data = mesh.data or (None if world_size is None else world_size // mesh.model_ranks)
    if data != 1:
        return
    cut = ",".join(plan.item(key) for key in ("tensor", "pipeline", "context") if plan.value(key) != 1)
    for key, others, does in _BETWEEN_ROWS:
        if plan.value(key) not in others:
            yield (
                f"{plan.item(key)} {does} ranks that have other rows of the batch, and {cut} with data=1 has "
                f"no such ranks; nearest legal: data=2,{cut},{plan.item(key)} [R221]"
            )


def _among(plan: Values, degree: str, built: dict[str, tuple[object, ...]]) -> Iterator[str]:
    for name, values in built.items():
        if plan.value(name) not in values:
            nearest = "" if values[0] is None else f",{name}={_word(values[0])}"
            yield (
                f"{plan.item(degree)} with {plan.item(name)} is not available in this version; "
                f"nearest legal: {plan.item(degree)}{nearest} [R220]"
            )


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
