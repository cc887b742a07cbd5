"""Presets: what each stands for, and that each is a plan of its own."""

from __future__ import annotations

import pytest

from ronde.plan import PRESETS, Plan, expand
from ronde.plan.describe import describe

# Name, canonical spelling, whether the plan is exact.
EXPECTED = [
    ("ddp", "ddp", True),
    ("hierarchical", "algorithm=hierarchical", True),
    ("central", "state=central", True),
    ("zero1", "state=zero1", True),
    ("zero2", "state=zero2", True),
    ("zero3", "state=zero3", True),
    ("ps", "state=server,optimizer-on=server", True),
    ("ps-async", "state=server,update=async,optimizer-on=server", False),
    ("ps-bounded", "state=server,update=bounded,staleness=4,optimizer-on=server", False),
    ("geo", "state=server,update=geo,every=100", False),
    ("local-sgd", "update=local,every=8", False),
    ("dgc", "compressor=topk,error-feedback=true", False),
    ("onebit", "compressor=onebit,error-feedback=true", False),
    ("twobit", "compressor=twobit,error-feedback=true", False),
    ("bytegrad", "compressor=int8", False),
    ("qadam", "compressor=int8,compressed=momentum", False),
    ("powersgd", "compressor=powersgd,error-feedback=true", False),
    ("fp16-allreduce", "compressor=fp16", False),
    ("decentralized", "update=decentralized,peers=all", False),
    ("decentralized-lowprec", "compressor=int8,update=decentralized,peers=shift-one", False),
    ("async-average", "update=async-average", False),
    ("hybrid", "sparse=sharded", True),
]


def test_every_preset_is_listed_here_and_no_other():
    assert [name for name, _, _ in EXPECTED] == list(PRESETS)


@pytest.mark.parametrize(("name", "spelled", "exact"), EXPECTED)
def test_a_preset_stands_for_its_values(name: str, spelled: str, exact: bool):
    plan = expand(name)
    assert str(plan) == spelled
    assert plan.exact is exact


def test_no_two_presets_are_one_plan():
    assert len({expand(name) for name in PRESETS}) == len(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_its_systems_and_is_found_again_by_its_values(name: str):
    described = describe(expand(name))
    assert described.presets == (name,)
    assert described.equals == PRESETS[name].equals
    assert described.equals


def test_the_default_plan_is_ddp():
    assert expand("ddp") == Plan()
