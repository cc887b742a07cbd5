"""Validation of the encoding and reduction of gradients."""

from __future__ import annotations

from collections.abc import Iterator

from ronde.plan.contradiction import contradiction
from ronde.plan.values import Values

__all__ = ["messages", "not_combined"]

# Key, the compressors that it applies to, and the one to suggest.
_REFINED = (
    ("density", ("topk", "randomk"), "topk"),
    ("threshold", ("twobit",), "twobit"),
    ("low-rank", ("powersgd",), "powersgd"),
)
# Compressors whose messages can be added chunk by chunk.
_BY_CHUNKS = ("fp16", "bf16", "int8")


def not_combined(plan: Values) -> Iterator[str]:
    """Yield combinations that have a meaning, and are not built."""
    compressor, rule = plan.item("compressor"), plan.update.rule
    if plan.communication.compressor == "none" or rule == "sync":
        return
    lowprec = "update=decentralized with peers=shift-one"
    if rule == "decentralized" and plan.communication.compressor == "int8":
        return
    known = f"update=sync, or for int8 {lowprec}"
    yield (
        f"{compressor} with {plan.item('update')} is not available in this version; available with: "
        f"{known} [R280]"
    )


def messages(plan: Values, world_size: int | None) -> Iterator[str]:
    """Yield contradictions about compressors and reductions."""
    yield from _refinements(plan)
    yield from _reductions(plan, world_size)
    yield from _momentum(plan)
    yield from _elsewhere(plan)


def _refinements(plan: Values) -> Iterator[str]:
    compressor = plan.communication.compressor
    for name, refined, nearest in _REFINED:
        if plan.value(name) is not None and compressor not in refined:
            item = plan.item(name)
            yield contradiction(item, plan.item("compressor"), f"compressor={nearest},{item}")
    density = plan.communication.density
    if density is not None and density > 1:
        yield (
            f"{plan.item('density')} is more than all elements; write a number up to 1, such as 0.001 [R281]"
        )
    if plan.update.warm_up is not None and not _warms_up(plan):
        item = plan.item("warm-up")
        yield contradiction(
            item, f"{plan.item('compressor')},{plan.item('update')}", f"update=local,every=8,{item}"
        )


def _warms_up(plan: Values) -> bool:
    travels = plan.communication
    if plan.update.rule in ("local", "async-average"):
        return True
    gradual = travels.compressor in ("topk", "powersgd") or travels.compressed == "momentum"
    return plan.update.rule == "sync" and gradual


def _reductions(plan: Values, world_size: int | None) -> Iterator[str]:
    travels, reduction = plan.communication, plan.item("reduction")
    if travels.reduction != "mean":
        if travels.compressor != "none":
            yield contradiction(reduction, plan.item("compressor"), f"{reduction},compressor=none")
        if plan.update.rule != "sync":
            yield contradiction(reduction, plan.item("update"), f"{reduction},update=sync")
        if travels.predivide is not None:
            yield contradiction(plan.item("predivide"), reduction, f"{plan.item('predivide')},reduction=mean")
    if travels.predivide is not None:
        for name, plain in (("compressor", "none"), ("update", "sync")):
            if plan.value(name) != plain:
                item = plan.item("predivide")
                yield contradiction(item, plan.item(name), f"{item},{name}={plain}")
    if travels.reduction == "adasum" and world_size is not None and world_size & (world_size - 1):
        ranks = 1 << (world_size.bit_length() - 1)
        yield contradiction(
            reduction, f"{world_size} ranks (no power of two)", f"{reduction} on {ranks} ranks"
        )


def _momentum(plan: Values) -> Iterator[str]:
    """Check QAdam: averaged momentum is sent by chunks, without residuals."""
    if plan.communication.compressed != "momentum" or plan.communication.compressor == "none":
        return
    item, compressor = plan.item("compressed"), plan.item("compressor")
    if plan.communication.compressor not in _BY_CHUNKS:
        yield contradiction(item, compressor, f"compressor=int8,{item}")
    if plan.communication.error_feedback:
        yield contradiction("error-feedback=true", item, f"error-feedback=false,{item}")
    if plan.update.rule != "sync":
        yield contradiction(item, plan.item("update"), f"{compressor},{item},update=sync")


def _elsewhere(plan: Values) -> Iterator[str]:
    """Check that encoded gradients are whole, and replicated on every rank."""
    travels = plan.communication
    if travels.as_it_is:
        return
    names = ("compressor", "reduction", "predivide")
    defaults = ("none", "mean", None)
    asked = next(
        plan.item(name) for name, default in zip(names, defaults, strict=True) if plan.value(name) != default
    )
    if plan.state.placement != "replicated":
        yield contradiction(asked, plan.item("state"), f"{asked},state=replicated")
    if plan.state.sparse == "sharded":
        yield contradiction(asked, plan.item("sparse"), f"{asked},sparse=replicated")
    if plan.compute.precision == "fp16":
        yield contradiction(asked, "precision=fp16", f"{asked},precision=bf16")
    summed = travels.compressor == "powersgd" or (
        travels.compressor == "none" and travels.reduction != "adasum"
    )
    if travels.algorithm != "auto" and not summed:
        yield contradiction(plan.item("algorithm"), asked, f"{asked},algorithm=auto")
