"""`ronde server`: what somebody who starts servers by hand does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ronde.launch.server_config import TOKEN_KEY
from ronde.server.transport.client import Client, ServerRefused
from ronde.server.transport.wire import Opcode

TOKEN = "00112233445566778899aabbccddeeff"


def started(state: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "ronde", "server", "--listen", "tcp://127.0.0.1:*", "--workers", "1"]
    server = subprocess.Popen(
        [*command, "--state", str(state)],
        env={**os.environ, TOKEN_KEY: TOKEN},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    for line in server.stderr:
        if "listens at" in line:
            return server, line.split("listens at ")[1].split()[0]
    raise AssertionError("the server has ended")


def test_state_outlives_a_killed_server_and_is_of_one_run(tmp_path: Path) -> None:
    for life in range(2):
        server, endpoint = started(tmp_path)
        try:
            client = Client([endpoint], bytes.fromhex(TOKEN), timeout=20, run="monday")
            meta = {"keys": [0], "sizes": [2], "dtype": "float32", "pull": True}
            one = np.ones(2, np.float32)
            (answer,) = client.wait([client.send(0, Opcode.ADD, meta, [one], changes=True)])
            client.close()
            if life:
                with pytest.raises(ServerRefused, match="the state of an earlier run"):
                    Client([endpoint], bytes.fromhex(TOKEN), timeout=20, run="tuesday")
        finally:
            server.send_signal(signal.SIGKILL)
            server.wait()
            assert server.stderr is not None
            server.stderr.close()
        assert answer.arrays[0].tolist() == [life + 1, life + 1]
