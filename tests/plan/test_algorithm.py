"""Which algorithm is chosen, and why."""

from __future__ import annotations

import pytest

from ronde.errors import PlanError
from ronde.plan.algorithm import choose, keeps_order_of_stores

X86, ARM = "x86_64", "aarch64"


@pytest.mark.parametrize(
    ("sizes", "device", "machine", "chosen", "reason"),
    [
        ((1,), "cpu", X86, "backend", "one rank"),
        ((4,), "cpu", X86, "shared-memory", "all ranks are on one host"),
        ((4,), "cpu", ARM, "backend", "not of the kind x86-64"),
        ((1, 1, 1), "cpu", X86, "backend", "one rank on each host"),
        ((1,) * 16, "cpu", X86, "backend", "one rank on each host"),
        ((1,) * 17, "cpu", ARM, "hierarchical", "17 hosts with one rank each"),
        ((2, 2), "cpu", X86, "hierarchical", "2 hosts"),
        ((2, 1), "cpu", X86, "hierarchical", "2 hosts"),
        ((2, 2), "cpu", ARM, "backend", "x86-64"),
        ((8, 8), "cuda", X86, "backend", "NCCL"),
    ],
)
def test_auto_fits_the_hosts(sizes: tuple[int, ...], device: str, machine: str, chosen: str, reason: str):
    choice = choose("auto", sizes, device=device, machine=machine)
    assert choice.algorithm == chosen
    assert reason in choice.reason
    assert str(choice).endswith(f"({choice.reason})")


@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical", "shared-memory"])
def test_what_the_plan_names_is_taken(algorithm):
    sizes = (4,) if algorithm == "shared-memory" else (2, 2)
    choice = choose(algorithm, sizes, machine=X86)
    assert choice.algorithm == algorithm
    assert choice.reason == f"algorithm={algorithm}"


def test_on_one_host_there_is_one_level_only():
    assert choose("hierarchical", (3,), machine=X86).algorithm == "shared-memory"


@pytest.mark.parametrize(
    ("algorithm", "sizes", "device", "machine", "message"),
    [
        (
            "shared-memory",
            (2, 2),
            "cpu",
            X86,
            "needs all ranks on one host, and they are on 2; use algorithm",
        ),
        ("shared-memory", (4,), "cpu", ARM, "shares memory as x86-64 processors do, and this is aarch64"),
        ("hierarchical", (2, 2), "cpu", ARM, "shares memory as x86-64 processors do"),
        ("ring", (4,), "cuda", X86, "algorithm=ring is for ranks on the CPU"),
    ],
)
def test_what_cannot_be_had_is_refused(algorithm, sizes, device, machine, message):
    with pytest.raises(PlanError, match=message):
        choose(algorithm, sizes, device=device, machine=machine)


def test_kinds_of_processors():
    assert [keeps_order_of_stores(kind) for kind in ("x86_64", "AMD64", "aarch64", "ppc64le")] == [
        True,
        True,
        False,
        False,
    ]
