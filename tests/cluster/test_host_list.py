"""Hosts as Horovod and MPI write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ronde.cluster.host_list import HostSlots, parse_hosts, ranks_of_hosts, read_hostfile
from ronde.errors import UsageError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:2,b:3", [("a", 2), ("b", 3)]),
        ("a", [("a", 1)]),
        ("me@a.example.org:4, 10.0.0.5", [("me@a.example.org", 4), ("10.0.0.5", 1)]),
        ("[fe80::1]:2,[::1]", [("fe80::1", 2), ("::1", 1)]),
        ("a:1,b:1,a:2", [("a", 3), ("b", 1)]),
    ],
)
def test_list(text: str, hosts: list[tuple[str, int]]) -> None:
    assert parse_hosts(text) == tuple(HostSlots(*host) for host in hosts)


@pytest.mark.parametrize("text", ["", "a:", "a:0", "a:two", "a,,b", "-a:1", "a b:2", "a:2;b:2"])
def test_no_list(text: str) -> None:
    with pytest.raises(UsageError, match="is not a host with a number of ranks; write host1:2,host2:2"):
        parse_hosts(text)


def test_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\na slots=2 max_slots=4\n\nb:3  # MPICH's way\nc\n")
    assert read_hostfile(file) == (HostSlots("a", 2), HostSlots("b", 3), HostSlots("c", 1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a cpus=2\n", "line 1: cpus=2 is not understood"),
        ("a\nb slots=0\n", "line 2: slots=0 is not understood"),
        ("# nothing\n", "names no host"),
        (None, "cannot be read: No such file"),
    ],
)
def test_no_file(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "hosts"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_hostfile(file)


def test_ranks_fill_one_host_after_another() -> None:
    hosts = parse_hosts("a:2,b:2,c:2")
    assert ranks_of_hosts(hosts, None) == (("a", 2), ("b", 2), ("c", 2))
    assert ranks_of_hosts(hosts, 3) == (("a", 2), ("b", 1))
    with pytest.raises(UsageError, match=r"--ranks 7 is more than the 6 slots of a:2,b:2,c:2; .* --ranks 6"):
        ranks_of_hosts(hosts, 7)
