"""A job written for Horovod on two hosts loses one without a word, and goes on without it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from compat.test_elastic_job import TRAINING
from ronde.testing.hosts import Network

from .test_ssh import PORT, await_words, said, ssh

__all__ = ["ssh"]

pytestmark = [pytest.mark.root, pytest.mark.cluster]


@pytest.mark.timeout(240)
def test_a_host_is_lost_and_comes_back(network: Network, ssh: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    wrapper = tmp_path / "bin" / "ssh"  # horovodrun has no option for the command
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/{ssh} "$@"\n')
    wrapper.chmod(0o755)
    options = ["-np", "3", "--min-np", "1", "-H", "host-1:2,host-2:1", "--ssh-port", PORT]
    options += ["--blacklist-cooldown-range", "2", "9"]
    command = [sys.executable, "-m", "ronde", "horovodrun", *options, sys.executable, "train.py"]
    environment = {
        **os.environ,
        "PATH": f"{wrapper.parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    with open(tmp_path / "launcher.log", "w") as log:
        process = network.hosts[0].popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    await_words(tmp_path, "[2]<stdout>:begins with 3", process)
    network.hosts[1].cut()
    await_words(tmp_path, "going on with 2 ranks on host-1:2", process)
    await_words(tmp_path, "[0]<stdout>:begins with 2", process)
    network.hosts[1].mend()
    await_words(tmp_path, "[0]<stdout>:begins with 3 at True", process)
    (tmp_path / "end").touch()
    assert process.wait(100) == 0, said(tmp_path)
    assert "the connection to host-2 is lost (" in said(tmp_path)
