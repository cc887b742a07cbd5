"""Each axis: what it holds by default, and what it refuses by itself."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from ronde.errors import PlanError
from ronde.plan import Communication, Compute, Data, Mesh, Plan, State, Update
from ronde.plan.axes import AXES, KEYS, axis_of
from ronde.plan.key import Choice, keys_of

# DESIGN.md section 3, word for word, plus the keys of ADR 0010, 0100 and 0103.
TABLE: dict[str, dict[str, tuple[str, ...]]] = {
    "mesh": {
        **dict.fromkeys(("data", "tensor", "pipeline", "context", "expert", "tensor-cuts"), ()),
        "context-attention": ("auto", "gather", "ring"),
        "sequence-parallel": ("auto", "on", "off"),
    },
    "state": {
        "state": ("replicated", "zero1", "zero2", "zero3", "central", "server"),
        "sparse": ("replicated", "sharded"),
        "servers": (),
        "offload": ("none", "optimizer", "all"),
    },
    "communication": {
        "algorithm": ("auto", "ring", "tree", "hierarchical", "shared-memory"),
        "compressor": (
            *("none", "fp16", "bf16", "int8", "onebit", "twobit"),
            *("topk", "randomk", "powersgd"),
        ),
        "compressed": ("gradient", "momentum"),
        "error-feedback": (),
        "density": (),
        "threshold": (),
        "low-rank": (),
        "reduction": ("mean", "sum", "adasum"),
        "predivide": (),
        "bucket-mb": (),
    },
    "update": {
        "update": ("sync", "local", "decentralized", "async-average", "async", "bounded", "geo"),
        "every": (),
        "adaptive": (),
        "peers": ("all", "shift-one"),
        "warm-up": (),
        "staleness": (),
        "optimizer-on": ("worker", "server"),
    },
    "compute": {
        "precision": ("fp32", "tf32", "bf16", "fp16"),
        "micro-batches": (),
        "recompute": ("none", "selective", "full"),
        "schedule": ("gpipe", "1f1b", "interleaved", "zero-bubble"),
        "compile": (),
    },
    "data": {
        "rng": ("auto", "global", "per-rank"),
        "batch-dim": (),
        "loading": ("auto", "sliced", "full"),
    },
}


def test_the_shape_holds_every_key_and_word_of_the_table():
    shape = {
        name: {key.name: key.kind.words if isinstance(key.kind, Choice) else () for key in keys_of(axis)}
        for name, axis in AXES.items()
    }
    assert shape == TABLE


def test_each_key_belongs_to_one_axis_and_defaults_to_a_value_that_it_has():
    assert [axis_of(name) for name in KEYS] == [axis for axis, keys in TABLE.items() for _ in keys]
    for key in KEYS.values():
        key.check(key.default)


def test_defaults_are_one_replicated_synchronous_exact_plan():
    plan = Plan()
    assert plan.mesh == Mesh(data=None, tensor=1, pipeline=1, context=1, expert=1)
    assert plan.state == State(placement="replicated", sparse="replicated", offload="none")
    assert plan.communication.algorithm == "auto"
    assert plan.communication.compressor == "none"
    assert plan.communication.bucket_mb is None
    assert plan.update == Update(rule="sync", every=None, optimizer_on="worker")
    assert plan.compute == Compute(precision="fp32", micro_batches=1, recompute="none", compile=False)
    assert plan.data == Data(rng="auto", batch_dim=None, loading="auto")
    assert plan.exact


@pytest.mark.parametrize("axis", AXES.values(), ids=AXES)
def test_axes_are_frozen_slotted_and_keyword_only(axis: Any):
    value = axis()
    field = dataclasses.fields(axis)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, field, "anything")
    with pytest.raises(TypeError):
        axis("positional")
    assert not hasattr(value, "__dict__")


def test_a_plan_is_a_value():
    plan = Plan(communication=Communication(bucket_mb=10), data=Data(rng="global"))
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert hash(plan) == hash(Plan.parse("rng=global,bucket-mb=10"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.data = Data()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("axis", "field", "value", "message"),
    [
        (Mesh, "tensor", 0, "tensor=0 is not a value of tensor; write a whole number from 1"),
        (Mesh, "data", 0, "data=0 is not a value of data; write a whole number from 1, or auto"),
        (Mesh, "pipeline", None, "pipeline=None is not a value of pipeline; write a whole number from 1"),
        (Mesh, "context", True, "context=True is not a value of context; write a whole number from 1"),
        (Mesh, "expert", 2.0, "expert=2.0 is not a value of expert; write a whole number from 1"),
        (State, "offload", "cpu", "offload=cpu is not a value of offload; write one of none, optimizer, all"),
        (
            Communication,
            "bucket_mb",
            0,
            "bucket-mb=0 is not a value of bucket-mb; write a number above 0, or",
        ),
        (Communication, "bucket_mb", float("nan"), "bucket-mb=nan is not a value"),
        (Communication, "bucket_mb", float("inf"), "bucket-mb=inf is not a value"),
        (Communication, "bucket_mb", True, "bucket-mb=True is not a value"),
        (Communication, "error_feedback", 1, "error-feedback=1 is not a value of error-feedback; write true"),
        (Update, "staleness", -1, "staleness=-1 is not a value of staleness; write a whole number from 0"),
        (Update, "every", 0, "every=0 is not a value of every; write a whole number from 1"),
        (Update, "rule", None, "update=None is not a value of update; write one of sync"),
        (Compute, "precision", "bf-16", "precision=bf-16 is not a value of precision (did you mean bf16?)"),
        (Compute, "schedule", 1, "schedule=1 is not a value of schedule"),
        (Data, "rng", "per_rank", "rng=per_rank is not a value of rng (did you mean per-rank?)"),
        (Data, "batch_dim", -1, "batch-dim=-1 is not a value of batch-dim; write a whole number from 0"),
    ],
)
def test_an_axis_refuses_a_value_that_it_does_not_have(axis: Any, field: str, value: object, message: str):
    with pytest.raises(PlanError) as caught:
        axis(**{field: value})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("rng", "device", "expected"),
    [
        ("auto", "cpu", "global"),
        ("auto", "cuda", "per-rank"),
        ("global", "cuda", "global"),
        ("per-rank", "cpu", "per-rank"),
    ],
)
def test_rng_goes_by_the_device_unless_it_is_given(rng: Any, device: str, expected: str):
    assert Data(rng=rng).rng_on(device) == expected
