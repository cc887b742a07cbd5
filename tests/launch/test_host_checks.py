"""What must be alike on all hosts."""

from __future__ import annotations

from typing import Any

from ronde.launch.host_checks import (
    address_of_all,
    differences,
    host_environment,
    mesh_steps,
    missing_states,
    names_of_loopback,
)
from ronde.messages import lift

ALIKE = {
    "python": "3.11.7",
    "ronde": "0.1.0",
    "torch": "2.13.0",
    "script": "ab",
    "devices": [],
    "machine": "m",
    "disk": 1 << 40,
}


def problems(changes: dict[str, Any], **of_both: Any) -> list[str]:
    first = {**ALIKE, **of_both}
    second = {**first, "machine": "n", **changes}
    troubles = differences([("a", 2, first), ("b", 2, second)], "train.py", "/bin/python")
    assert {each.host for each in troubles} <= {"b"}
    return [lift(str(each))[1] for each in troubles]


def test_alike() -> None:
    assert problems({}) == []
    assert problems({}, devices=["0", "1"]) == []


def test_each_difference_has_its_line() -> None:
    assert problems({"torch": "2.12.1"}) == [
        "b has torch 2.12.1, a has 2.13.0; on b: /bin/python -m pip install torch==2.13.0"
    ]
    assert problems({"python": "3.12.0", "torch": ""}) == [
        "b has python 3.12.0, a has 3.11.7; install the same environment on both",
        "b has torch (none), a has 2.13.0; on b: /bin/python -m pip install torch==2.13.0",
    ]
    assert problems({"script": "cd"}) == ["b has another train.py than a; copy the project there again"]
    assert "b has no train.py; copy the project there" in problems({"script": ""})[0]


def test_a_full_disk() -> None:
    assert problems({"disk": 3 << 20}) == [
        "b has 3 MiB free on the disk of its run directory; free some there, or take another disk: "
        "--run-dir DIR"
    ]
    assert problems({"disk": -1}) == []


def test_a_name_that_means_this_host() -> None:
    known = {"one": ("10.0.0.1",), "two": ("127.0.0.1",), "me@three": ("::1", "127.0.1.1"), "four": ()}

    def found(*names: str) -> list[str]:
        table = {name.rpartition("@")[2]: each for name, each in known.items()}
        return [each.host for each in names_of_loopback(names, lambda name: table.get(name, ()))]

    assert found("one", "two", "me@three", "four", "127.0.0.1", "localhost") == ["two", "me@three"]
    assert found("two") == []  # alone, it may well be meant


def test_devices() -> None:
    assert problems({"devices": []}, devices=["0", "1"])[0].startswith("b offers no CUDA device, a does;")
    assert problems({"devices": ["0"]}, devices=["0", "1"]) == [
        "2 ranks on b need a CUDA device each, it offers 1; give it fewer: b:1"
    ]
    assert problems({"machine": "m"}, devices=["0", "1"])[0].startswith("a and b are one machine")


def test_variables_that_hosts_are_given() -> None:
    here = {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "2",
        "HOME": "/root",
        "KEY": "k",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    given, missing = host_environment(here, ["KEY", "MODE=fast", "NONE"])
    assert given == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2", "KEY": "k", "MODE": "fast"}
    assert missing == ["NONE"]
    assert host_environment({"CUDA_VISIBLE_DEVICES": ""}, []) == ({"CUDA_VISIBLE_DEVICES": ""}, [])


def test_the_address_that_all_have_reached() -> None:
    tried = ["172.17.0.1", "10.0.0.1"]
    found = {"10.0.0.1": "10.0.0.2"}
    assert address_of_all(tried, [("a", {"172.17.0.1": "172.17.0.1", **found}), ("b", found)]) == (
        "10.0.0.1",
        [],
    )
    assert address_of_all(tried, [("a", found), ("b", {})]) == ("", ["b"])


def test_all_of_few_hosts_and_some_of_many_are_tried() -> None:
    assert mesh_steps(1) == []
    assert mesh_steps(3) == [1, 2]
    assert mesh_steps(64) == [1, 2, 4, 8, 16, 32]
    assert len(mesh_steps(10000)) == 10


def test_hosts_that_do_not_see_all_tables_of_an_earlier_run_are_told() -> None:
    assert missing_states("", [], [("one", []), ("two", [])]) == []
    assert missing_states("/old", [], [("one", [1, 0]), ("two", [0, 1])]) == []
    assert len(missing_states("/old", [0], [("one", []), ("two", [0])])) == 1
    found = missing_states("/old", [0, 1], [("one", [0, 1, 2]), ("two", [1])])
    assert [trouble.host for trouble in found] == ["two"]
    assert found[0].what == "two sees the tables of 1 of 3 servers in --server-state /old [R136]"
