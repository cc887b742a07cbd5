"""Ranks on two hosts, both of them this one, behind a command that takes the place of ssh."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from ronde.doctor.run import examine

from .conftest import Result, gone, wait_until

DRIVER = Path(__file__).with_name("hosts_driver.py")


def start(experiment: Any, script: str, *arguments: str, **variables: str) -> Any:
    command = experiment.command(script, *arguments)
    command = [sys.executable, str(DRIVER), command[2], "one:2,two:1", *command[4:]]
    experiment.command = lambda *_, **__: command
    return experiment.start(script, COLOUR="red", **variables)


def run(experiment: Any, script: str, *arguments: str) -> Result:
    return experiment.finish(start(experiment, script, *arguments))


def test_output_places_and_the_first_failure_with_its_host(experiment: Any) -> None:
    """One run for all of it: starting an agent takes longest."""
    done = run(
        experiment,
        """
        import json
        config = json.loads(os.environ["FAKE_CONFIG"])
        (here / f"config-{rank}").write_text(os.environ["FAKE_CONFIG"])
        print("said by", rank, sys.argv[1:], os.environ["COLOUR"], os.environ["SHAPE"], flush=True)
        note(f"rank-{rank}")
        if rank == 2:
            while not all((here / f"rank-{each}.pid").exists() for each in (0, 1)):
                time.sleep(0.01)
            raise ValueError("of rank 2")
        wait_for_ever()
        """,
        "--epochs",
        "2",
    )
    assert done.code == 1
    assert done.out == b"said by 0 ['--epochs', '2'] red round\n"
    assert "ronde: rank 2 on two failed: ValueError: of rank 2; logs of all ranks: " in done.err
    assert "raise ValueError" in done.err
    assert "said by 2" in experiment.log(2)  # brought here from the host
    configs = [json.loads((experiment.directory / f"config-{rank}").read_text()) for rank in range(3)]
    assert [(each["rank"], each["local_rank"], each["local_world_size"]) for each in configs] == [
        (0, 0, 2),
        (1, 1, 2),
        (2, 0, 1),
    ]
    assert [(each["host"], each["hosts"]) for each in configs] == [(0, 2), (0, 2), (1, 2)]
    assert len({each["store"] for each in configs}) == 1
    assert configs[0]["store"] == f"tcp://{configs[0]['master_address']}:{configs[0]['master_port']}"
    assert [Path(each["run_dir"]).name for each in configs] == ["host-0", "host-0", "host-1"]


WAITING = """
print("words of rank", rank, flush=True)
note(f"rank-{rank}")
note(f"agent-{rank}", os.getppid())
wait_for_ever()
"""


def waiting(experiment: Any) -> tuple[Any, list[int], list[int]]:
    process = start(experiment, WAITING)
    ranks = [experiment.pid(f"rank-{rank}") for rank in range(3)]
    agents = [experiment.pid(f"agent-{rank}") for rank in (0, 2)]
    return process, ranks, agents


def test_a_killed_rank_is_explained(experiment: Any) -> None:
    process, ranks, _ = waiting(experiment)
    os.kill(ranks[2], signal.SIGKILL)
    done = experiment.finish(process)
    assert done.code == 128 + signal.SIGKILL
    head, cause, doubt, *_ = done.err.splitlines()
    assert head == f"ronde: rank 2 on two was killed by SIGKILL; logs of all ranks: {experiment.run_dir}"
    assert cause == "cause: rank 2 was killed from outside (SIGKILL)"
    assert doubt == "  no kill for lack of memory was counted or logged here"
    evidence, found = examine(experiment.run_dir)
    assert (found.cause, found.rank) == ("killed", 2)
    assert [(each.rank, evidence.host_of(each).name, each.process.pid) for each in evidence.ranks] == [
        (rank, "two" if rank == 2 else "one", ranks[rank]) for rank in range(3)
    ]


def test_a_stall_is_told_once_with_all_places_and_its_cause(experiment: Any) -> None:
    """Rank 0 waits on the first host, and rank 2 sleeps on the second."""
    process = start(
        experiment,
        """
        import json, faulthandler
        from ronde.trace.heartbeat import STACK_SIGNAL
        from ronde.trace.lockstep_board import LockstepBoard
        place = json.loads(os.environ["FAKE_CONFIG"])
        run = pathlib.Path(place["run_dir"])
        faulthandler.register(STACK_SIGNAL, file=open(run / f"rank-{rank}.stack", "w"), all_threads=False)
        board = LockstepBoard(run / "boundary.board", place["local_rank"], place["local_world_size"])
        if rank < 2:
            board.waits(board.record("all_reduce of float32 [3]", "train.py:12"))
        time.sleep(600)
        """,
        DRIVER_TIMEOUT="2",
    )
    done = experiment.finish(process)
    assert done.code == 1
    notice, _, end = done.err.partition("ronde: error[R200]: the run hung for 2 s")
    places = notice.splitlines()
    assert places[0].startswith(
        "ronde: note[R200]: ranks have waited for 1 s; the run is ended after 2 s of this"
    )
    assert places[1] == "  rank 0 waits at train.py:12: all_reduce of float32 [3]"
    assert places[3].startswith("  rank 2 is at ")
    assert places[3].endswith("script.py:31, in <module>")
    assert places[4] == "cause: rank 2 sleeps (time.sleep, or a wait for a signal)"
    assert notice.count("ronde:") == 1
    assert places[3] in end


def test_a_signal_ends_all(experiment: Any) -> None:
    process, _, _ = waiting(experiment)
    process.send_signal(signal.SIGTERM)
    assert experiment.finish(process).code == 128 + signal.SIGTERM


@pytest.mark.soak
def test_of_a_killed_agent_what_had_come_is_there(experiment: Any) -> None:
    process, ranks, agents = waiting(experiment)
    log = experiment.run_dir / "rank-2.log"
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"), "the log to come")
    os.kill(agents[1], signal.SIGKILL)
    done = experiment.finish(process)
    assert done.code == 1
    assert "the connection to two is lost (" in done.err
    assert ", and with it rank 2; check whether that host is up" in done.err
    wait_until(lambda: all(gone(rank) for rank in ranks), "all ranks to end")
    assert experiment.log(2) == "words of rank 2\n"
    evidence, _ = examine(experiment.run_dir)
    assert [each.rank for each in evidence.ranks] == [0, 1]


@pytest.mark.soak
def test_a_killed_launcher(experiment: Any) -> None:
    process, ranks, agents = waiting(experiment)
    process.kill()
    wait_until(lambda: all(gone(each) for each in ranks + agents), "ranks and agents to end")


@pytest.mark.soak
def test_interrupted(experiment: Any) -> None:
    process, _, _ = waiting(experiment)
    process.send_signal(signal.SIGINT)
    assert experiment.finish(process).code == 128 + signal.SIGINT


@pytest.mark.soak
def test_held_by_ctrl_z_and_continued(experiment: Any) -> None:
    process, ranks, _ = waiting(experiment)

    def states() -> set[str]:
        return {Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[0] for rank in ranks}

    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: states() == {"T"}, "the ranks to stop")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: states() == {"S"}, "the ranks to go on")
    process.send_signal(signal.SIGINT)
    assert experiment.finish(process).code == 130


@pytest.mark.soak
def test_a_closed_pipe_reaches_the_script(experiment: Any) -> None:
    process = start(
        experiment,
        """
        note(f"rank-{rank}")
        while True:
            print("line", flush=True)
            time.sleep(0.01)
        """,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    assert "BrokenPipeError" in experiment.finish(process).err
