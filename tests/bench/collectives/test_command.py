"""The whole command on ranks of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ronde.bench.collectives.cases import OPERATIONS
from ronde.bench.collectives.mpi_wheel import installed_mpi
from ronde.cli.entry import main


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


@pytest.mark.soak
def test_ours_against_gloo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept.json"
    words = "--against gloo --algorithms shared-memory,ring --sizes 4KB --pairs 1".split()
    assert run("bench", "collectives", *words, "--json", str(kept)) == 0
    printed = capsys.readouterr()
    rows = [line.split()[0] for line in printed.out.splitlines() if " Gloo " in line]
    assert rows == ["all-reduce", *OPERATIONS]
    assert printed.err.count("ronde: ") == len(OPERATIONS)
    assert "ronde: all-reduce of 4 KB: shared-memory " in printed.err
    fields = json.loads(kept.read_text())
    assert (fields["kind"], fields["settings"]["ranks"]) == ("collectives", "2")
    assert fields["settings"]["gloo"].startswith("torch ")
    assert [each["labels"]["by"] for each in fields["results"]] == [
        "shared memory",
        "ring",
        *["shared memory"] * 5,
    ]
    assert run("bench", "show", str(kept)) == 0
    assert capsys.readouterr().out == printed.out


@pytest.mark.skipif(installed_mpi() is None, reason="no MPI is installed: pip install 'ronde[mpi]'")
def test_mpi(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--against mpi --algorithms shared-buckets --sizes 4KB,1MB --pairs 1".split()
    assert run("bench", "collectives", *words) == 0
    assert capsys.readouterr().out.count("  MPI  ") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--operations", "gossip"),
            "there is no operation 'gossip'; choose among all-reduce, reduce-scatter",
        ),
        (("--algorithms", "magic"), "there is no algorithm 'magic'; choose among shared-memory"),
        (("--against", "smoke"), "there is no peer 'smoke'; choose among gloo, mpi"),
        (("--sizes", "4"), "'4' is not a size; write a number and a unit"),
        (("--ranks", "1"), "--ranks 1 has no other rank to exchange data with; give --ranks 2 or more"),
        (("--json", "/absent/x.json"), "cannot write --json"),
    ],
)
def test_a_mistake_is_a_usage_error(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", "collectives", *words) == 2
    assert message in capsys.readouterr().err
