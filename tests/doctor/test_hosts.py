"""`ronde doctor -H`: hosts before a run, and the links between them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from ronde.cluster.link_speed import LinkSpeed
from ronde.doctor.finding import Finding
from ronde.doctor.host_links import Pair, judge, rounds
from ronde.doctor.preflight import lines
from ronde.testing import forked

FAST, SLOW = LinkSpeed(1e-4, 1.2e9), LinkSpeed(2e-3, 125e3)


@pytest.mark.parametrize("hosts", [2, 3, 4, 7, 8])
def test_every_pair_has_its_round(hosts: int) -> None:
    made = rounds(hosts)
    assert sorted(itertools.chain(*made)) == list(itertools.combinations(range(hosts), 2))
    for each in made:
        busy = list(itertools.chain(*each))
        assert len(busy) == len(set(busy))


def test_the_slowest_link_is_named() -> None:
    (found,) = judge([Pair("a", "b", FAST, FAST), Pair("a", "c", FAST, LinkSpeed(1e-4, 1e9))])
    assert found.level == "good"
    assert found.summary == (
        "4 ways between hosts measured; the slowest is from a to c: 8.0 Gbit/s, 0.10 ms there and back"
    )


def test_a_slow_link_is_wrong_and_one_that_is_slower_than_others_a_note() -> None:
    slow, slower, _ = judge([Pair("a", "b", SLOW, FAST), Pair("a", "c", FAST, LinkSpeed(1e-4, 2e8))])
    assert (slow.check, slow.level, slow.host) == ("link", "wrong", "b")
    assert slow.summary == "from b to a: 1.0 Mbit/s, 2.00 ms there and back"
    assert (slower.level, slower.host) == ("note", "a")


def test_a_link_that_is_cut_is_wrong_on_the_side_that_does_not_reach_the_other() -> None:
    cut, slowest = judge([Pair("a", "b", FAST, None)])
    assert (cut.check, cut.level, cut.host) == ("connections", "wrong", "b")
    assert slowest.level == "good"


def test_what_is_good_on_hosts_is_counted() -> None:
    good = Finding(check="x", level="good", summary="fine", host="a")
    wrong = Finding(check="y", level="wrong", summary="bad", fix="do", host="b")
    assert lines([good, good, wrong]) == [
        "ok    a: 2 checks",
        "WRONG b: y: bad",
        "      fix: do",
        "1 of 3 checks found something wrong",
    ]


def test_two_hosts_are_asked_and_their_link_is_measured(tmp_path: Path) -> None:
    names = ["127.0.0.1", "127.0.0.2"]
    (tmp_path / "hosts").write_text("".join(f"{name} slots=1\n" for name in names))
    words = ["doctor", "--hostfile", "hosts", "--script", "no.py", "--ssh-command", "true", "--json"]
    done = forked.run(words, directory=tmp_path)
    assert done.returncode == 1
    findings = json.loads(done.stdout)
    checks = [{each["check"] for each in findings if each["host"] == name} for name in names]
    assert checks[0] == checks[1] >= {"versions", "disk", "threads", "host-name", "script"}
    (link,) = [each for each in findings if each["check"] == "link" and each["level"] == "good"]
    assert "2 ways between hosts measured; the slowest is from 127.0.0." in link["summary"]
    assert [(each["host"], each["check"]) for each in findings if each["level"] == "wrong"] == [
        (name, "script") for name in names
    ]


def test_options_for_other_hosts_need_hosts(tmp_path: Path) -> None:
    done = forked.run(["doctor", "--ssh-port", "22"], directory=tmp_path)
    assert done.returncode == 2
    assert "are about other hosts, and none is named" in done.stderr
