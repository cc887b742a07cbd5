"""A scrape is answered by HTTP, and the last values stay in the run's directory."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest

from made_run import made_run
from ronde.cli.metrics_option import metrics_socket
from ronde.cluster.environment import ClusterEnvironment
from ronde.errors import LaunchError, UsageError
from ronde.report.metrics.exposition import serving
from ronde.report.metrics.run_metrics import RunFacts, RunMetrics

FACTS = RunFacts(run_id="x", script="train.py", plan="ddp", seed=5)


def test_a_scrape(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    listening = metrics_socket("0", None, quiet=True)
    assert listening is not None
    said = capfd.readouterr().err
    address = said.split()[-1]
    assert said == f"ronde: note[R618]: metrics are at {address}\n"
    with serving(listening, RunMetrics(made_run(tmp_path), FACTS), tmp_path):
        with urllib.request.urlopen(address) as answer:
            got = answer.read().decode()
        with socket.create_connection(listening.getsockname()) as rude:
            rude.sendall(b"nonsense\r\n\r\n")
    assert 'ronde_run_steps_total{rank="1"} 300.0' in got
    assert (tmp_path / "metrics.prom").read_text() == got
    assert listening.fileno() == -1
    assert capfd.readouterr() == ("", "")


def test_the_address_is_told_and_whether_others_reach_it(capfd: pytest.CaptureFixture[str]) -> None:
    opened = metrics_socket("0.0.0.0:0", None, quiet=False)
    assert opened is not None
    with opened:
        port = opened.getsockname()[1]
        assert capfd.readouterr().err == (
            f"ronde: note[R618]: metrics are at http://0.0.0.0:{port}/metrics\n"
            "ronde: note[R618]: whatever reaches that port can read them: there is no authentication\n"
        )
        with pytest.raises(LaunchError, match=f"--metrics {port}: the port is in use; choose another"):
            metrics_socket(str(port), None, quiet=True)


@pytest.mark.parametrize("given", ["http", "65536", ":9464", "host:", "-1"])
def test_what_is_no_port_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match=f"--metrics {given} is neither a port"):
        metrics_socket(given, None, quiet=True)


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"cannot listen at 192\.0\.2\.1 .*name an address of this host"):
        metrics_socket("192.0.2.1:0", None, quiet=True)


def test_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'ronde\[metrics\]'"):
        metrics_socket("0", None, quiet=True)


def test_only_the_first_rank_of_a_host_opens_the_port() -> None:
    place = ClusterEnvironment(
        launcher="torchrun", rank=3, world_size=4, local_rank=1, local_world_size=2, node=1, nodes=2,
        master_address="", master_port=0, run_id="", restart_count=0, agent_store=True,
    )  # fmt: skip
    assert metrics_socket("0", place, quiet=True) is None
