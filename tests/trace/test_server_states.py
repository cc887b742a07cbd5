"""What servers of an earlier run have left, wherever they were."""

from __future__ import annotations

from pathlib import Path

from ronde.trace.launch_record import LaunchedNode, LaunchRecord, write_launch_record
from ronde.trace.server_states import server_states


def launched(directory: Path, *, by_agents: bool) -> None:
    nodes = [LaunchedNode(name=name, run_id=f"run-{name}", pids={}) for name in ("a", "b")]
    record = LaunchRecord(
        run_id="run", host="a", launcher=1, script="a.py", plan="ps", nodes=nodes, by_agents=by_agents
    )
    write_launch_record(directory / "launch.json", record)


def test_servers_of_one_host_and_of_several_are_found(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for place in ("run/server-0", "run/host-0/server-0", "run/host-1/server-1", "run-b/server-3"):
        (tmp_path / place).mkdir(parents=True)
    (run / "server-1.log").touch()
    launched(run, by_agents=True)
    assert server_states(run) == {
        0: run / "host-0" / "server-0",
        1: run / "host-1" / "server-1",
        3: tmp_path / "run-b" / "server-3",
    }
    launched(run, by_agents=False)
    assert server_states(run)[0] == run / "server-0"
    assert server_states(tmp_path / "none") == {}
