"""Forms of requests accept what clients send, and refuse other types and ranges."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from ronde.server.dense_checks import DTYPES, STEPPED
from ronde.server.request_forms import (
    AddGradients,
    Keys,
    PullRows,
    PushStep,
    PutRows,
    ScaleGradients,
    Step,
    Update,
    Values,
    fields_of,
    read_form,
)

PARTS = {"keys": [1, 2], "sizes": [3, 0], "dtype": "bfloat16"}
GROUP = {"keys": [1], "options": {"lr": 0.1, "betas": [0.9, 0.99]}}
STEP = {
    "optimizer": 0,
    "class": "Adam",
    "groups": [GROUP],
    "anew": True,
    "default": "float32",
    "values": [[1, "value", "float32", 3]],
    "state": [[1, "step", "float32", 2.0], [1, "exp_avg", "float32", None], [1, "mu", None, 1]],
}


@pytest.mark.parametrize(
    ("form", "meta"),
    [
        (Keys, {"keys": []}),
        (Values, PARTS),
        (AddGradients, {**PARTS, "fresh": [0, 1]}),
        (PushStep, {**PARTS, "optimizer": 3, "class": "SGD", "options": {"lr": 1}}),
        (ScaleGradients, {"keys": [2**63 - 1], "factor": math.inf}),
        (PullRows, {"keys": [1], "dim": 4}),
        (Step, STEP),
        (Update, {"table": 0, "lr": None}),
        (PutRows, {"table": 0, "entries": ["ids"]}),
    ],
)
def test_fields_are_read_and_others_ignored(form: type[msgspec.Struct], meta: dict[str, Any]):
    fields = fields_of(read_form(form, {**meta, "into": [1, 2]}))
    assert msgspec.json.encode(fields, order="sorted") == msgspec.json.encode(meta, order="sorted")


@pytest.mark.parametrize(
    ("form", "meta"),
    [
        (Keys, {"keys": [1, 1]}),
        (Keys, {"keys": [-1]}),
        (Keys, {"keys": [2**63]}),
        (Keys, {"keys": [True]}),
        (Keys, {"keys": [1.0]}),
        (Keys, {}),
        (Values, {**PARTS, "sizes": [3]}),
        (Values, {**PARTS, "sizes": [3, 2**48]}),
        (Values, {**PARTS, "dtype": "complex64"}),
        (AddGradients, {**PARTS, "fresh": [0]}),
        (PushStep, {**PARTS, "optimizer": 3, "class": "LBFGS", "options": {}}),
        (ScaleGradients, {"keys": [1], "factor": "2"}),
        (PullRows, {"keys": [1], "dim": 0}),
        (Step, {**STEP, "groups": [GROUP, GROUP]}),
        (Step, {**STEP, "values": [[1, "state", "float32", 3]]}),
        (Step, {**STEP, "state": [[1, "step", None, "2"]]}),
    ],
)
def test_other_types_and_ranges_are_refused(form: type[msgspec.Struct], meta: dict[str, Any]):
    with pytest.raises(ValueError, match=r"\[R430\]$"):
        read_form(form, meta)


def test_names_are_those_of_torch():
    assert [str(dtype) for dtype in DTYPES.values()] == [f"torch.{name}" for name in DTYPES]
    assert "Adam" in STEPPED
