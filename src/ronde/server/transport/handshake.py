"""Handshake of a session: both ends prove the run's token without sending it.

The client sends a fresh public key, the server answers with its own and a proof, and the client proves
itself. Proofs and the session's keys are derived, by HKDF with HMAC-SHA256, from the token, from both public
keys, and from the secret of an X25519 exchange. A proof or key fits one role in one session. Traffic that was
recorded cannot be read by the token alone.
"""

from __future__ import annotations

import dataclasses
import hmac

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ronde.server.transport.buffers import BufferPool
from ronde.server.transport.envelope import WireError
from ronde.server.transport.seal import Opener, Sealer

__all__ = ["KEY_BYTES", "ClientHandshake", "ServerHandshake", "Session"]

KEY_BYTES = 32
_PURPOSE = b"ronde transport 2: server proof, client proof, client key, server key"


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """Both directions of a connection between two ends that have proven the token."""

    sealer: Sealer
    opener: Opener


class ClientHandshake:
    """A client's side of one handshake.

    Attributes:
        challenge: the client's public key; 32 bytes.
    """

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._private = X25519PrivateKey.generate()
        self.challenge = self._private.public_key().public_bytes_raw()

    def answers(self, response: bytes) -> bool:
        """Return whether a response is to this handshake's challenge."""
        return response[:KEY_BYTES] == self.challenge

    def finish(self, response: bytes, pool: BufferPool) -> tuple[bytes, Session]:
        """Check the server's proof; return the client's proof, and the session.

        Raises:
            WireError: the server has not proven the token.
        """
        if len(response) != 3 * KEY_BYTES:
            raise WireError("token", "a response has two public keys and a proof [R427]")
        theirs, proof = response[KEY_BYTES : 2 * KEY_BYTES], response[2 * KEY_BYTES :]
        secrets = _derive(self._token, self._private, theirs, self.challenge, theirs)
        if not hmac.compare_digest(proof, secrets.server_proof):
            raise WireError("token", "the token is not that of this run [R427]")
        session = Session(Sealer(secrets.client_key, pool), Opener(secrets.server_key, pool))
        return secrets.client_proof, session


class ServerHandshake:
    """A server's side of one handshake.

    Args:
        challenge: the client's public key; 32 bytes.

    Attributes:
        response: both public keys and the server's proof; 96 bytes.

    Raises:
        WireError: the challenge is not a public key.
    """

    def __init__(self, token: bytes, challenge: bytes) -> None:
        private = X25519PrivateKey.generate()
        own = private.public_key().public_bytes_raw()
        self._secrets = _derive(token, private, challenge, challenge, own)
        self.response = challenge + own + self._secrets.server_proof

    def finish(self, proof: bytes, pool: BufferPool) -> Session:
        """Check the client's proof, and return the session.

        Raises:
            WireError: the client has not proven the token.
        """
        if not hmac.compare_digest(proof, self._secrets.client_proof):
            raise WireError("token", "the token is not that of this run [R427]")
        return Session(Sealer(self._secrets.server_key, pool), Opener(self._secrets.client_key, pool))


@dataclasses.dataclass(frozen=True, slots=True)
class _Secrets:
    server_proof: bytes
    client_proof: bytes
    client_key: bytes
    server_key: bytes


def _derive(token: bytes, private: X25519PrivateKey, theirs: bytes, client: bytes, server: bytes) -> _Secrets:
    """Derive the secrets of a handshake between two public keys.

    Raises:
        WireError: `theirs` is not a public key.
    """
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise WireError("token", f"a public key has {KEY_BYTES} bytes, not all of them 0 [R427]") from None
    derived = HKDF(SHA256(), 4 * KEY_BYTES, salt=client + server, info=_PURPOSE).derive(token + shared)
    return _Secrets(*(derived[begin : begin + KEY_BYTES] for begin in range(0, len(derived), KEY_BYTES)))
