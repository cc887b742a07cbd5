"""The command line of `ronde bench`; what it measures is in tests/bench."""

from __future__ import annotations

from pathlib import Path

import pytest

from ronde.cli.app import main


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def test_an_unknown_workload_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "dp", "--workloads", "bert") == 2
    assert (
        "there is no workload 'bert'; choose among transformer, gpt, resnet18-gn, mlp"
        in capsys.readouterr().err
    )


def test_a_report_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", "overhead", "--json", str(tmp_path / "absent" / "x.json")) == 2
    assert "cannot write --json" in capsys.readouterr().err


def test_one_rank_is_nothing_to_compare_with_ddp(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "dp", "--ranks", "1") == 2
    assert "--ranks" in capsys.readouterr().err
