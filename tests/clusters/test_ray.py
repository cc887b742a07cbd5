"""`ronde run --ray` on a Ray cluster of one node, this one."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ronde.cluster.ray_nodes import nodes_of_ray

from .training import losses, plain_losses

pytestmark = pytest.mark.cluster
HEAD = ["start", "--head", "--num-cpus", "3", "--include-dashboard", "false", "--disable-usage-stats"]


def ray(*words: str) -> None:
    command = [str(Path(sys.executable).with_name("ray")), *words]
    subprocess.run(command, check=True, capture_output=True, timeout=100)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the package ray is missing")
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray(*HEAD, "--port", "6399", "--temp-dir", str(tmp_path_factory.mktemp("ray")))
    try:
        yield "127.0.0.1:6399"
    finally:
        ray("stop", "--force")


def command(address: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "ronde", "run", "--ray", address, *words]


def test_one_devices_numbers_on_all_of_the_clusters_slots(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (node,) = nodes_of_ray(address)
    assert node.slots == 3
    plain = plain_losses(tmp_path, monkeypatch, capsys)
    done = subprocess.run(
        command(address, "train.py"), cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert f"3 ranks on {node.name}:3 (from --ray {address})" in done.stderr
    assert losses(done.stdout) == plain


def test_an_actor_that_is_lost_is_placed_again(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = plain_losses(tmp_path, monkeypatch, capsys)
    words = command(address, "--ranks", "2", "--checkpoint", "saved", "--every", "5", "--restarts", "1")
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        process = subprocess.Popen([*words, "train.py", "60"], cwd=tmp_path, stdout=out, stderr=err)
    end = time.monotonic() + 90
    while not list((tmp_path / "saved").glob("step-*")):
        assert process.poll() is None, (tmp_path / "err").read_text()
        assert time.monotonic() < end
        time.sleep(0.02)
    (actor,) = [each for each in psutil.process_iter() if each.name().startswith("ray::_NodeActor")]
    actor.kill()
    assert process.wait(200) == 0, (tmp_path / "err").read_text()
    said = (tmp_path / "err").read_text()
    assert "Ray has lost the actor" in said
    assert "restart 1 of 1, from the newest checkpoint" in said
    # What was printed and not yet passed on when the actor was killed is in no log but the node's.
    assert set(losses((tmp_path / "out").read_text())) <= set(plain)


def test_what_is_no_cluster_or_has_no_room_is_named(address: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = command("127.0.0.1:1", "train.py")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 2
    assert re.search(
        "--ray 127.0.0.1:1(: the cluster has not answered| is not a Ray cluster that)", done.stderr
    )
    words = command(address, "--ranks", "4", "train.py")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert "--ranks 4 is more than the 3 slots of" in done.stderr
