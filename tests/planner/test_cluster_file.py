"""Clusters from TOML: presets, and what is said of mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ronde.errors import UsageError
from ronde.planner.cluster_file import PRESETS, parse_cluster, preset_text, read_cluster
from ronde.planner.transformer import read_model

NAMED = {"dgx-a100", "dgx-h100", "a100-40-roce", "8xV100-100GbE", "2xcpu"}


def test_the_presets_are_there_and_each_constant_has_a_source() -> None:
    assert set(PRESETS) >= NAMED
    for name in PRESETS:
        cluster = read_cluster(name)
        assert cluster.name == name
        assert {"node", "network"} <= set(cluster.sources)


def changed(old: str, new: str) -> str:
    text = preset_text("dgx-a100")
    assert old in text
    with pytest.raises(UsageError) as refused:
        parse_cluster(text.replace(old, new), "x.toml")
    return str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "memory-gib = 79.2",
            "memory-gb = 79.2",
            "groups[0].memory-gb is not a key (did you mean memory-gib?)",
        ),
        ("memory-gib = 79.2", "memory-gib = -1", "groups[0].memory-gib is -1, and cannot be negative"),
        ("memory-gib = 79.2", "memory-gib = 81920", "if these are MiB, divide by 1024"),
        ("bandwidth-gb-s = 2039", "bandwidth-gb-s = 0.2", "if these are TB/s, multiply by 1000"),
        ("bandwidth-gbit-s = 200", "bandwidth-gbit-s = 12800", "give Gbit/s of one card"),
        ("bandwidth-gbit-s = 200", "bandwidth-gbit-s = 0.3", "if these are GB/s, multiply by 8"),
        ("\nbandwidth-gb-s = 235", "\nbandwidth-gb-s = 8000", "if these are Gbit/s, divide by 8"),
        ("gemm-efficiency = 0.8248", "gemm-efficiency = 82", "divide per cent by 100"),
        ("nodes = 1\n", "", "groups[0].nodes is missing: give a number from 1"),
        ("fp32 = 19.5", "fp31 = 19.5", "peak-tflops is missing: give a table with fp32"),
        ('operation = "alltoall"', 'operation = "all_to_all"', "(did you mean alltoall?)"),
        ('backend = "nccl"', 'backend = "mpi"', "backend is 'mpi': give nccl or gloo"),
        ("nics = 8", "nics = 1.5", "network.nics is 1.5: give a whole number"),
        ("nics = 8", 'nics = "8"', "network.nics is '8': give a number"),
    ],
)
def test_a_mistake_names_field_value_and_fix(old: str, new: str, said: str) -> None:
    assert said in changed(old, new)


def test_what_is_no_table_is_named() -> None:
    text = "groups = [1]\nnode = 3\nnetwork = 'x'\nmeasured = [4]\nsources = 5"
    with pytest.raises(UsageError) as refused:
        parse_cluster(text, "x.toml")
    for named in ("groups[0] is 1", "node is 3", "network is 'x'", "measured[0] is 4", "sources is 5"):
        assert f"{named}: give a table" in str(refused.value)


@pytest.mark.parametrize("read", [read_cluster, read_model])
def test_bytes_are_no_toml(read: Callable[[str], object], tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"x\.toml is not TOML"):
        read(str(file))


def test_all_mistakes_are_told_at_once() -> None:
    told = changed("nics = 8\n", "").count("is missing")
    assert told == 1
    with pytest.raises(UsageError, match=r"node is missing.*network is missing"):
        parse_cluster("[[groups]]\nnodes = 1\n", "x.toml")


def test_an_unknown_preset_has_its_nearest() -> None:
    with pytest.raises(UsageError, match=r"dgx-a10 is not a preset \(did you mean dgx-a100\?\)"):
        read_cluster("dgx-a10")


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(preset_text("dgx-h100").replace("nodes = 1", "nodes = 4"))
    assert read_cluster(str(path)).devices == 32
    with pytest.raises(UsageError, match="cannot read --cluster"):
        read_cluster(str(tmp_path / "none.toml"))


def test_a_file_builds_on_a_preset() -> None:
    usual = read_cluster("dgx-a100").resized(1024)
    text = 'name = "mine"\npreset = "dgx-a100"\nnodes = 128\nprice-per-hour = 2.5\n'
    found = parse_cluster(text + "[network]\nnics = 4\n[sources]\nnetwork = 'half'", "x.toml")
    assert found.groups == usual.groups
    assert (found.name, found.price, found.network.nics) == ("mine", 2.5, 4)
    assert (found.network.usual, found.node) == (usual.network.usual, usual.node)
    assert found.sources == {**usual.sources, "network": "half"}


def test_a_link_of_the_file_is_not_hidden_by_what_the_preset_measured() -> None:
    found = parse_cluster('preset = "dgx-a100"\n[node]\nbandwidth-gb-s = 50', "x.toml")
    assert found.node.constants("all_reduce", 8).beta == 50e9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('preset = "dgx-a10"', "preset is 'dgx-a10' (did you mean dgx-a100?): give one of"),
        ('preset = "dgx-a100"\nnodes = 1.5', "nodes is 1.5: give a whole number"),
        ('preset = "dgx-a100"\nnodes = 2\n[[groups]]\nnodes = 1', "nodes stands beside [[groups]]"),
        ('preset = "dgx-a100"\nnode = 3', "node is 3: give a table, under [node]"),
        ('preset = "dgx-a100"\nnodez = 3', "nodez is not a key"),
        ("nodes = 3", "nodes is not a key"),
    ],
)
def test_a_mistake_over_a_preset_names_the_key(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_cluster(text, "x.toml")
    assert said in str(refused.value)


def test_resized_takes_whole_nodes() -> None:
    cluster = read_cluster("dgx-a100")
    assert (cluster.resized(32).devices, cluster.resized(32).node_size) == (32, 8)
    assert (cluster.resized(2).devices, cluster.resized(2).node_size) == (2, 2)
