"""The launcher's exit code is the script's own, or that of the rank that failed first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("code", [0, 1, 7])
def test_the_scripts_own_code_without_a_word(experiment: Any, ranks: int, code: int) -> None:
    result = experiment.run(f"sys.exit({code})", ranks=ranks)
    assert (result.code, result.out, result.err) == (code, b"", "")


def test_a_message_as_exit_code_is_left_to_the_script(experiment: Any) -> None:
    result = experiment.run("sys.exit('no such data set')")
    assert (result.code, result.err) == (1, "no such data set\n")


def test_a_traceback_of_one_rank_alone_needs_no_report(experiment: Any) -> None:
    result = experiment.run("raise ValueError('wrong shape')", ranks=1)
    assert result.code == 1
    assert result.err.count("ValueError: wrong shape") == 1
    assert "ronde:" not in result.err


def test_code_of_the_first_failing_rank(experiment: Any) -> None:
    result = experiment.run(
        """
        note(f"rank{rank}")
        if rank == 1:
            print("last words", flush=True)
            sys.exit(42)
        wait_for_ever()
        """
    )
    assert result.code == 42
    assert result.err.startswith("ronde: rank 1 exited with code 42; ")
    assert result.err.endswith("last words\n")


def test_a_rank_that_ends_well_before_the_others_is_no_failure(experiment: Any) -> None:
    result = experiment.run(
        """
        if rank == 1:
            note("one")
            sys.exit()
        wait_for_end_of("one")
        print("done", rank)
        """,
        ranks=3,
    )
    assert (result.code, result.out, result.err) == (0, b"done 0\n", "")
    assert experiment.log(2) == "done 2\n"


def test_arguments_and_configuration_reach_the_ranks(experiment: Any, tmp_path: Path) -> None:
    result = experiment.run(
        """
        import json
        config = json.loads(os.environ["FAKE_CONFIG"])
        print(sys.argv[1:], config["seed"], config["world_size"], config["store"], config["device"])
        print(config["master_port"] > 0, "RONDE_RANK_CONFIG" in os.environ)
        """,
        "--help",
        "--",
        "-x",
    )
    assert result.code == 0
    store = f"file://{tmp_path / 'run' / 'store'}"
    assert result.out.decode() == f"['--help', '--', '-x'] 7 2 {store} cpu\nTrue False\n"
