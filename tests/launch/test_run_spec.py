"""One value says what runs, and goes to nodes and ranks as JSON."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

from ronde.launch.node_spec import NodeSpec
from ronde.launch.rank_config import ENVIRONMENT_KEY, RankConfig, RankPlace
from ronde.launch.run_spec import RunSpec
from ronde.launch.server_config import ServerConfig, with_servers
from ronde.trace.run_directory import RunDirectory

_OTHERS: dict[Any, Any] = {
    str: "other",
    bool: True,
    int: 7,
    float: 0.5,
    int | None: 3,
    tuple[str, ...]: ("one", "two"),
    tuple[int, float]: (5, 60.0),
}


def with_no_default() -> RunSpec:
    """A run in which every field has another value than by default, whatever fields there are."""
    kinds = typing.get_type_hints(RunSpec)
    run = RunSpec(**{field.name: _OTHERS[kinds[field.name]] for field in dataclasses.fields(RunSpec)})
    same = [each.name for each in dataclasses.fields(run) if getattr(run, each.name) == each.default]
    assert same == []
    return run


def test_a_rank_is_told_all_of_the_run_and_its_place() -> None:
    place = RankPlace(
        rank=3,
        world_size=4,
        local_rank=1,
        local_world_size=2,
        run_dir="/r",
        store="tcp://a:1",
        host=1,
        hosts=2,
    )
    config = RankConfig(run=with_no_default(), place=place)
    environment = {ENVIRONMENT_KEY: config.to_json(), "HOME": "/h"}
    assert RankConfig.take_from(environment) == config
    assert environment == {"HOME": "/h"}


def test_a_node_is_told_all_of_the_run_and_tells_its_ranks(tmp_path: Any) -> None:
    run, servers = with_servers(with_no_default_plan(), ["tcp://a:1", "tcp://b:2"], 3)
    node = NodeSpec(
        run=run,
        run_id="id",
        ranks=2,
        world_size=3,
        store="tcp://a:3",
        master_port=3,
        cuda=False,
        host=1,
        hosts=2,
        first_rank=1,
        servers=tuple(servers[1:]),
    )
    again = NodeSpec.from_fields(json.loads(json.dumps(node.to_fields())))
    assert again == node
    assert isinstance(again.servers[0], ServerConfig)
    told = again.rank_configs(RunDirectory(path=tmp_path, run_id="id"), "/tmp/x", has_terminal=False)
    assert [(each.place.rank, each.place.local_rank, each.place.host) for each in told] == [
        (1, 0, 1),
        (2, 1, 1),
    ]
    assert {each.run for each in told} == {run}
    assert run.servers == ("tcp://a:1", "tcp://b:2")


def with_no_default_plan() -> RunSpec:
    return dataclasses.replace(with_no_default(), plan="ps,servers=2", durability="snapshot")
