"""From evidence to a cause: of real runs, recorded, and made up where no run was recorded."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from ronde.doctor.explain import explain
from ronde.trace.evidence import (
    Collective,
    Connection,
    Evidence,
    Failure,
    HostFacts,
    ProcessFacts,
    RankEvidence,
    SilentHost,
)
from ronde.trace.run_hosts import RunHost

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
SOURCE = Path(__file__).parents[2] / "src" / "ronde" / "doctor"
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "doctor.md"


def process(pid: int = 100, **fields: Any) -> ProcessFacts:
    return ProcessFacts(**{"pid": pid, "state": "S", "cpu": 0.0, "busy": 0.0, **fields})


def rank(number: int, **fields: Any) -> RankEvidence:
    return RankEvidence(**{"rank": number, "process": process(100 + number), "standing": "waiting", **fields})


def evidence(*ranks: RankEvidence, **fields: Any) -> Evidence:
    return Evidence(**{"run_directory": "/runs/1", "reason": "stall", "time": 0.0, "ranks": ranks, **fields})


def failed(*ranks: RankEvidence, kind: str = "signal", number: int = 1, **fields: Any) -> Evidence:
    failure = Failure(rank=number, kind=kind, exit_code=1)
    return evidence(*ranks, reason="failure", failure=failure, **fields)


def raised(kind: str, message: str) -> Evidence:
    error = {"type": kind, "message": message, "traceback": f"{kind}: {message}\n", "kind": "script"}
    return failed(rank(0), rank(1, standing="running", error=error), kind="script")


STACK = """\
Thread 0x00007f01 (most recent call first):
  File "{file}", line 12 in {function}
  File "/home/user/project/train.py", line 33 in load
  File "/home/user/project/train.py", line 40 in <module>
"""


def stack(file: str = "/usr/lib/python3.11/threading.py", function: str = "wait") -> str:
    return STACK.format(file=file, function=function)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_evidence_has_its_cause_and_rank(path: Path) -> None:
    recorded = json.loads(path.read_text())
    found = explain(Evidence.from_json(json.dumps(recorded["evidence"])))
    expected = recorded["expected"]
    assert {name: getattr(found, name) for name in expected} == expected, found
    assert found.summary
    assert found.fix or found.told


def late(**fields: Any) -> Evidence:
    return evidence(rank(0), rank(1, **{"standing": "running", "beat": 0.3, "stack": stack(), **fields}))


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (late(process=process(state="T")), "stopped"),
        (evidence(rank(0), rank(1, process=process(state="T"))), "stopped"),
        (late(beat=30.0), "interpreter-held"),
        (late(beat=30.0, process=process(state="R", cpu=1.0)), "interpreter-held"),
        (late(process=process(state="D", waits_in="nfs_wait")), "uninterruptible"),
        (late(process=process(waits_in="futex_do_wait")), "lock"),
        (late(process=process(call=202)), "lock"),
        (late(process=process(waits_in="hrtimer_nanosleep")), "sleeps"),
        (late(process=process(waits_in="pipe_read")), "waits-outside"),
        (late(process=process(waits_in="do_wait")), "waits-outside"),
        (late(process=process(state="R", cpu=0.9)), "computes"),
        (late(children=(process(7, state="T"),)), "loader-stopped"),
        (late(standing="absent"), "not-begun"),
        (late(standing="ended", process=ProcessFacts(pid=1)), "ended-early"),
        (late(process=ProcessFacts(pid=1)), "died"),
    ],
)
def test_a_rank_that_does_not_come(given: Evidence, cause: str) -> None:
    found = explain(given)
    assert (found.cause, found.rank) == (cause, 1)


LOADER = stack("/usr/lib/python3/site-packages/torch/utils/data/dataloader.py", "_try_get_data")


def test_a_loader_whose_worker_waits_for_a_lock_is_frozen() -> None:
    waits = process(waits_in="poll_schedule_timeout")
    frozen = late(stack=LOADER, process=waits, children=(process(7, waits_in="futex_do_wait"),))
    assert explain(frozen).cause == "loader-frozen"


def test_a_loader_whose_worker_works_is_slow() -> None:
    waits = process(waits_in="poll_schedule_timeout")
    busy = late(stack=LOADER, process=waits, children=(process(7, state="R", busy=0.9),))
    assert explain(busy).cause == "slow-loader"


def test_the_line_of_the_script_is_told() -> None:
    found = explain(late(process=process(waits_in="futex_do_wait")))
    assert (
        found.evidence[0]
        == "it is at /home/user/project/train.py:33, in load, which called wait (threading.py:12)"
    )


def test_all_wait_at_different_places() -> None:
    places = [rank(each, where=f"train.py:{3 + (each == 2)}", what="all_reduce") for each in range(3)]
    found = explain(evidence(*places))
    assert (found.cause, found.rank) == ("paths-differ", 2)


def test_a_kill_is_of_the_kernel_only_where_it_says_so() -> None:
    ranks = (rank(0), rank(1, code=-signal.SIGKILL, process=ProcessFacts(pid=77)))
    assert explain(failed(*ranks)).cause == "killed"
    counted = explain(failed(*ranks, hosts=(HostFacts(oom_kills=1),)))
    assert (counted.cause, counted.rank) == ("host-memory", 1)
    noted = HostFacts(kernel=("Out of memory: Killed process 77 (python)",))
    assert explain(failed(*ranks, hosts=(noted,))).cause == "host-memory"
    of_another = HostFacts(kernel=("Out of memory: Killed process 99 (java)",))
    assert explain(failed(*ranks, hosts=(of_another,))).cause == "killed"


def test_a_crash_names_the_line_by_its_stack() -> None:
    crash = "Fatal Python error: Segmentation fault\n\n" + stack(
        "/usr/lib/python3.11/ctypes/__init__.py", "string_at"
    )
    found = explain(
        failed(rank(0), rank(1, code=-signal.SIGSEGV, crash=crash.replace("Thread", "Current thread", 1)))
    )
    assert found.cause == "crashed"
    assert "train.py:33, in load" in found.evidence[0]


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("RuntimeError", "DataLoader worker (pid 12) is killed by signal: Killed. ", "loader-worker-killed"),
        ("RuntimeError", "PytorchStreamReader failed reading zip archive", "checkpoint-truncated"),
        ("EOFError", "Ran out of input", "checkpoint-truncated"),
        ("RuntimeError", "unable to allocate shared memory(shm) for file </torch_1>", "shared-memory"),
        ("OSError", "[Errno 28] No space left on device", "disk-full"),
        ("OSError", "[Errno 27] File too large", "file-limit"),
        ("OSError", "[Errno 24] Too many open files: 'x'", "too-many-files"),
        ("OSError", "[Errno 98] Address already in use", "port-taken"),
        ("RuntimeError", "can't start new thread", "too-many-processes"),
        ("BlockingIOError", "[Errno 11] Resource temporarily unavailable", "too-many-processes"),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", "device-memory"),
        (
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
            "host-memory",
        ),
        ("MemoryError", "", "host-memory"),
        ("AcceleratorError", "CUDA error: an illegal memory access was encountered", "device-error"),
        ("ModuleNotFoundError", "No module named 'nothing'", "module-missing"),
        ("RecursionError", "maximum recursion depth exceeded", "recursion"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'x'", "file-missing"),
        ("ValueError", "loss is nan in step 3", "not-finite"),
        ("ValueError", "bad label 11", "script-error"),
    ],
)
def test_errors_are_known_by_their_words(kind: str, message: str, cause: str) -> None:
    found = explain(raised(kind, message))
    assert (found.cause, found.rank) == (cause, 1)


def test_an_error_of_all_ranks_is_no_single_ranks() -> None:
    error = {"type": "ValueError", "message": "bad", "traceback": "", "kind": "script"}
    found = explain(failed(rank(0, error=error), rank(1, error=error), kind="script"))
    assert (found.cause, found.rank) == ("script-error", None)


def diverged(*places: tuple[str, str]) -> Evidence:
    paths = [[n, where, what] for n, (where, what) in enumerate(places)]
    error = {
        "type": "DivergedError",
        "message": "the ranks have diverged",
        "kind": "diverged",
        "paths": paths,
    }
    return failed(*(rank(n, error=error) for n in range(len(places))), kind="diverged")


def test_the_odd_one_of_three_is_named() -> None:
    two, other = ("train.py:3", "all_reduce of float32 [4]"), ("train.py:9", "all_gather of float32 [4]")
    found = explain(diverged(two, other, two))
    assert (found.cause, found.rank) == ("paths-differ", 1)
    assert explain(diverged(two, other)).rank is None


def test_the_same_line_with_other_shapes() -> None:
    two, other = (("train.py:3", f"all_gather of float32 [4, {last}]") for last in (2, 3))
    found = explain(diverged(two, two, other))
    assert (found.cause, found.rank) == ("shapes-differ", 2)


@pytest.mark.parametrize(
    ("kind", "cause"), [("host", "host-lost"), ("store", "store-lost"), ("gone", "rank-gone")]
)
def test_what_the_launcher_has_lost(kind: str, cause: str) -> None:
    found = explain(failed(rank(0), kind=kind, said="the connection to two is lost (x)\nmore"))
    assert (found.cause, found.summary) == (cause, "the connection to two is lost (x)")


def test_a_loader_worker_that_dies_while_its_rank_waits_for_others() -> None:
    """The error of torch comes out of a collective then."""
    words = "DataLoader worker (pid 12) is killed by signal: Killed. "
    error = {"type": "PeerLost", "message": words, "kind": "peer"}
    found = explain(failed(rank(0, where="a:1"), rank(1, where="a:2", error=error), kind="peer"))
    assert (found.cause, found.rank) == ("loader-worker-killed", 1)


ONE, TWO = HostFacts(name="one", address="10.0.0.1"), HostFacts(name="two", address="10.0.0.2")
SILENT = SilentHost(name="two", address="10.0.0.2", ranks=(1,), seconds=11.2)


def to(peer: str, host: HostFacts, queued: int = 0, repeated: int = 0, sent: float = 0.0) -> HostFacts:
    """A host whose ranks send to another."""
    connection = Connection(peer=peer, queued=queued, repeated=repeated)
    return dataclasses.replace(host, connections=(connection,), sent=sent)


def test_a_host_of_which_nothing_comes() -> None:
    cut = to("10.0.0.2", ONE, queued=2700, repeated=5)
    found = explain(evidence(rank(0), hosts=(cut,), silent=(SILENT,)))
    assert (found.cause, found.rank, found.host) == ("host-silent", 1, "two")
    assert found.summary == "nothing has come from two (rank 1) for 11 s"
    assert found.evidence == (
        "rank 0 on one: 2700 bytes for two (10.0.0.2) are not acknowledged, sent 6 times",
    )
    assert "10.0.0.2" in found.fix
    lost = failed(rank(0), kind="host", hosts=(cut,), silent=(SILENT,), said="the connection is lost")
    assert explain(lost).cause == "host-silent"
    # A host that answers as slowly as hosts may.
    late = dataclasses.replace(SILENT, seconds=1.1)
    assert explain(evidence(rank(0), hosts=(ONE,), silent=(late,))).cause != "host-silent"


def test_a_host_whose_connection_was_closed() -> None:
    closed = dataclasses.replace(SILENT, seconds=0.4)
    found = explain(failed(rank(0), kind="host", hosts=(ONE,), silent=(closed,), said="closed (x)\nmore"))
    assert (found.cause, found.rank, found.host, found.summary) == ("host-lost", 1, "two", "closed (x)")


def on_two(first: HostFacts, second: HostFacts, **fields: Any) -> Evidence:
    return evidence(rank(0), rank(1, host=1), hosts=(first, second), **fields)


def test_a_link_on_which_nothing_arrives() -> None:
    """Both hosts speak to the launcher."""
    cut = on_two(to("10.0.0.2", ONE, queued=64, repeated=4), to("10.0.0.1", TWO, queued=64, repeated=1))
    found = explain(cut)
    assert (found.cause, found.rank, found.host) == ("link-cut", 1, "two")
    assert found.summary == "the link between one and two is cut, in one direction at least"
    assert len(found.evidence) == 1
    # What is lost now and then on a busy link, a peer that does not read, another program's connection.
    assert explain(on_two(to("10.0.0.2", ONE, queued=64, repeated=2), TWO)).cause == "unknown"
    assert explain(on_two(to("10.0.0.2", ONE, repeated=9), TWO)).cause == "unknown"
    assert explain(on_two(to("10.9.9.9", ONE, queued=64, repeated=9), TWO)).cause == "unknown"


FAR = RunHost(name="two", ranks=(2,), address="10.0.0.2")


def test_ranks_that_wait_for_hosts_of_other_observers() -> None:
    """torchrun and `mpirun`: an observer sees the ranks of its own host."""
    seen = HostFacts(name="one")
    ranks = (rank(0, where="t.py:3", what="all_reduce"), rank(1, where="t.py:3", what="all_reduce"))
    found = explain(evidence(*ranks, hosts=(seen,), unobserved=(FAR,)))
    assert (found.cause, found.rank) == ("waits-for-hosts", None)
    assert found.summary == "all ranks of one wait for ranks of other hosts: two (rank 2)"
    assert found.evidence == ("rank 0 waits at t.py:3: all_reduce", "rank 1 waits at t.py:3: all_reduce")
    assert "sees the ranks of one only" in found.fix
    assert "ping 10.0.0.2" in found.fix
    # A rank here is late: no other host is to blame.
    late = rank(1, standing="running", process=process(state="R", cpu=0.9))
    assert explain(evidence(ranks[0], late, hosts=(seen,), unobserved=(FAR,))).cause == "computes"
    # The kernel knows more of the link.
    cut = to("10.0.0.2", seen, queued=64, repeated=4)
    found = explain(evidence(*ranks, hosts=(cut,), unobserved=(FAR,)))
    assert (found.cause, found.rank, found.host) == ("link-cut", 2, "two")
    assert found.summary == "two does not answer one: it is down, or the link between them is cut"


def test_a_rank_that_has_lost_others_of_another_observer_is_no_cause() -> None:
    """It sleeps until its launcher ends it, and stands where it was when the other host was lost."""
    words = "rank 0 lost its connection to the host two (10.0.0.2, rank 2)"
    error = {"type": "PeerLost", "message": words, "kind": "peer"}
    asleep = process(state="S", waits_in="do_sigtimedwait", cpu=0.0)
    lost = rank(0, standing="running", where="t.py:3", error=error, process=asleep)
    for other in (rank(1, where="t.py:3"), rank(1, where="t.py:9", what="broadcast")):
        for first in (lost, dataclasses.replace(lost, standing="waiting", what="all_reduce")):
            found = explain(failed(first, other, kind="peer", number=0, unobserved=(FAR,)))
            assert (found.cause, found.told) == ("peer-lost", True)


def test_a_link_on_which_little_arrives() -> None:
    found = explain(on_two(to("10.0.0.2", ONE, queued=1 << 20, sent=120e3), TWO))
    assert (found.cause, found.rank, found.host) == ("slow-link", 0, "one")
    assert found.summary == "the link from one to two is slow: 1.0 Mbit/s"
    assert explain(on_two(to("10.0.0.2", ONE, queued=1 << 20, sent=1e9), TWO)).cause == "unknown"
    stopped = rank(1, host=1, process=process(state="T"))
    by_rank = evidence(rank(0), stopped, hosts=(to("10.0.0.2", ONE, queued=1 << 20, sent=9.0), TWO))
    assert explain(by_rank).cause == "stopped"


def test_the_host_of_a_rank_is_told() -> None:
    found = explain(on_two(ONE, TWO, reason="failure", failure=Failure(rank=1, kind="exit", exit_code=3)))
    assert (found.rank, found.host) == (1, "two")
    assert "  rank 1 is on two" in found.lines()
    assert explain(late(process=process(state="T"))).host == ""


def rings(*places: str, **fields: Any) -> tuple[RankEvidence, ...]:
    """Ranks of two hosts, the last on the second, that did this under the third number."""

    def entries(last: str) -> tuple[Collective, ...]:
        told = ("a", "b", last)
        return tuple(
            Collective(
                group="boundary",
                number=n,
                what=f"all_gather of float32 [{n}]",
                where=where,
                entered=9 - n,
                left=None,
            )
            for n, where in enumerate(told, 1)
        )

    return tuple(
        rank(n, collectives=entries(each), host=int(n == len(places) - 1), **fields)
        for n, each in enumerate(places)
    )


def test_paths_of_several_hosts_are_compared_by_their_rings() -> None:
    """Ranks compare themselves with those of their host only."""
    ranks, hosts = rings("t.py:3", "t.py:9", "t.py:3"), (HostFacts(), HostFacts())
    told = [[n, each.collectives[2].where, each.collectives[2].what] for n, each in enumerate(ranks[:2])]
    error = {"type": "DivergedError", "message": "they differ", "kind": "diverged", "paths": told}
    found = explain(
        failed(ranks[0], dataclasses.replace(ranks[1], error=error), ranks[2], kind="diverged", hosts=hosts)
    )
    assert (found.cause, found.rank, found.told) == ("paths-differ", 1, False)
    lost = explain(failed(*rings("t.py:3", "t.py:9"), kind="peer", hosts=hosts))
    assert (lost.cause, lost.rank, lost.told) == ("paths-differ", None, False)
    assert lost.evidence[0] == "rank 0 at t.py:3: all_gather of float32 [3]"
    assert explain(failed(*rings("t.py:3", "t.py:3"), kind="peer", hosts=hosts)).cause == "peer-lost"
    killed = (dataclasses.replace(each, code=-9 if each.rank else None) for each in rings("t.py:3", "t.py:9"))
    assert explain(failed(*killed, hosts=hosts)).cause == "killed"


def meeting(number: int, age: float) -> Collective:
    return Collective(group="reducer", number=number, what="x", where="y", entered=age, left=age - 0.01)


def test_who_comes_last_is_a_straggler() -> None:
    early = tuple(meeting(n, 20.0 - n) for n in range(1, 15))
    behind = tuple(meeting(n, 20.0 - n - 0.5) for n in range(1, 15))
    runs = process(state="R", cpu=0.9)
    ranks = (
        rank(0, standing="running", collectives=early, process=runs),
        rank(1, standing="running", collectives=behind, process=runs),
    )
    found = explain(evidence(*ranks, reason="asked"))
    assert (found.cause, found.rank) == ("straggler", 1)


def ended(number: int, **summary: float) -> RankEvidence:
    fields = {"data": 0.0, "communication": 0.0, **summary}
    return rank(number, standing="ended", process=ProcessFacts(pid=0), summary=fields)


def test_after_a_run() -> None:
    def asked(*ranks: RankEvidence) -> Evidence:
        return evidence(*ranks, reason="asked")

    assert explain(asked(ended(0), ended(1))).cause == "ended"
    assert explain(asked(ended(0, data=0.5), ended(1, data=0.5))).cause == "slow-loader"
    slow = explain(asked(ended(0, communication=0.5), ended(1, communication=0.1)))
    assert (slow.cause, slow.rank) == ("straggler", 1)
    leaks = dataclasses.replace(ended(1), process=process(files=990, most_files=1000))
    assert explain(asked(ended(0), leaks)).cause == "too-many-files"
    spoilt = dataclasses.replace(ended(1), not_finite=7)
    nan = explain(asked(dataclasses.replace(ended(0), not_finite=8), spoilt))
    assert (nan.cause, nan.rank) == ("not-finite", 1)


def test_a_killed_launcher_is_not_blamed_on_a_rank() -> None:
    gone = [rank(number, process=process(0, state=""), step=7) for number in range(2)]
    found = explain(evidence(*gone, reason="asked", launcher_gone=True))
    assert (found.cause, found.rank) == ("launcher-lost", None)
    assert found.evidence == ("the ranks had done 7 steps",)


def test_thin_evidence_is_unknown() -> None:
    found = explain(evidence(rank(0), rank(1, standing="running", process=process(state="S", cpu=0.1))))
    assert (found.cause, found.rank) == ("unknown", None)


def test_every_cause_is_told_in_the_docs() -> None:
    sources = "\n".join(path.read_text() for path in [*SOURCE.glob("causes/*.py"), SOURCE / "explain.py"])
    causes = set(re.findall(r'cause="([a-z-]+)"', sources)) | set(
        re.findall(r'_Known\(\s*"([a-z-]+)"', sources)
    )
    causes |= set(re.findall(r'cause="aborted" if|"(crashed)"', sources)) - {""}
    missing = [cause for cause in sorted(causes) if f"`{cause}`" not in DOCS.read_text()]
    assert missing == []
