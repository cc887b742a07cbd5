"""What `import ronde` offers, and that it costs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ronde
from ronde.plan import Plan


def test_the_public_names_are_these():
    assert sorted(ronde.__all__) == [
        "EmbeddingTable",
        "KVStore",
        "Plan",
        "ReplicaClient",
        "Step",
        "__version__",
        "deferred",
        "init",
        "is_main",
        "launch",
        "prepare",
        "rank",
        "table",
        "world_size",
    ]
    assert dir(ronde) == sorted(ronde.__all__)


def test_names_are_found_on_first_use():
    assert ronde.Plan is Plan


def test_an_unknown_name_is_refused_with_the_names_there_are():
    with pytest.raises(
        AttributeError,
        match="has no attribute 'plam'; it has EmbeddingTable, KVStore, Plan, ReplicaClient, Step, ",
    ):
        _ = ronde.plam  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("module", ["ronde", "ronde.plan", "ronde.cli", "ronde.cli.plan", "ronde.errors"])
def test_importing_it_imports_no_torch_and_no_numpy(module: str):
    code = f"import sys, {module}; print(sorted({{'torch', 'numpy', 'rich'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
