"""Without its library nothing is sent, and the message says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

MISSING = "import sys; sys.modules['cryptography'] = None"
OLD = "import cryptography.hazmat.primitives.ciphers.aead as aead; aead.AESGCM = object"


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (MISSING, "need cryptography, which is not installed: pip install 'ronde[server]'"),
        (OLD, "need cryptography 47 or newer, not "),
    ],
)
@pytest.mark.parametrize("module", ["server.kv_store", "server.process", "server.serving.client"])
def test_servers_and_clients_ask_for_cryptography(before: str, told: str, module: str) -> None:
    program = f"{before}\nimport ronde.{module}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("ronde.errors.UsageError")
    assert told in last
    assert last.endswith("[R419]")
