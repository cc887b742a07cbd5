"""Transport between workers and servers: sealed messages, shared memory, client, service."""

from __future__ import annotations

from ronde.errors import UsageError

try:
    import cryptography
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ModuleNotFoundError:
    raise UsageError(
        "servers and their clients need cryptography, which is not installed: "
        "pip install 'ronde[server]' [R419]"
    ) from None

if not hasattr(AESGCM, "encrypt_into"):
    raise UsageError(
        f"servers and their clients need cryptography 47 or newer, not {cryptography.__version__}: "
        "pip install -U 'ronde[server]' [R419]"
    )
