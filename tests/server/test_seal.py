"""Messages of a session are read by its other end alone, once, and as they were written."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ronde.server.transport import buffers, seal
from ronde.server.transport.buffers import BufferPool
from ronde.server.transport.envelope import WireError, open_envelope
from ronde.server.transport.handshake import ClientHandshake, ServerHandshake, Session

TOKEN = bytes(range(16))
FRAMES = [b"head and meta", b"", b"\1" * 100, bytes(range(256)) * 40]


def sessions(client_token: bytes = TOKEN, server_token: bytes = TOKEN) -> tuple[Session, Session]:
    pool = BufferPool()
    client = ClientHandshake(client_token)
    server = ServerHandshake(server_token, client.challenge)
    assert client.answers(server.response)
    proof, session = client.finish(server.response, pool)
    return session, server.finish(proof, pool)


def opened(session: Session, frames: list[Any]) -> list[bytes]:
    return [bytes(each) for each in session.opener.open(open_envelope(frames), frames[1:])]


def sealed(session: Session, frames: list[Any] = FRAMES) -> list[bytes]:
    return [bytes(each) for each in session.sealer.seal(frames, 7)]


@pytest.mark.parametrize("piece", [1 << 30, 64])
def test_both_directions(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "_PIECE_BYTES", piece)
    client, server = sessions()
    for _ in range(2):
        assert opened(server, sealed(client)) == FRAMES
        assert opened(client, sealed(server)) == FRAMES
    assert open_envelope(sealed(client)).request == 7
    assert not any(each in b"".join(sealed(client)) for each in FRAMES if each)


@pytest.mark.parametrize("piece", [1 << 30, 64])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_message_that_was_changed_is_refused(piece: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seal, "_PIECE_BYTES", piece)
        client, server = sessions()
        frames: list[Any] = sealed(client)
        which = data.draw(st.integers(0, len(frames) - 1))
        change = data.draw(st.sampled_from(["flip", "cut", "insert", "swap", "replace"]))
        frame = bytearray(frames[which])
        place = data.draw(st.integers(0, len(frame) - 1))
        if change == "flip":
            frame[place] ^= data.draw(st.integers(1, 255))
        elif change == "cut":
            del frame[place:]
        elif change == "insert":
            frame[place:place] = data.draw(st.binary(min_size=1, max_size=99))
        frames[which] = bytes(frame)
        before = sealed(client)
        if change == "swap":
            frames[which], frames[which - 1] = frames[which - 1], frames[which]
        elif change == "replace":
            frames[which] = before[which]
        with pytest.raises(WireError):
            opened(server, frames)
        assert opened(server, sealed(client)) == FRAMES, "the session goes on"


def test_a_message_is_opened_once() -> None:
    client, server = sessions()
    first, second = sealed(client), sealed(client)
    assert opened(server, second) == FRAMES
    for old in (first, second):
        with pytest.raises(WireError) as refused:
            opened(server, old)
        assert refused.value.kind == "replay"


def test_a_message_of_another_session_or_direction_is_refused() -> None:
    client, server = sessions()
    other, _ = sessions()
    for message, receiver in ((sealed(other), server), (sealed(client), client)):
        with pytest.raises(WireError) as refused:
            opened(receiver, message)
        assert refused.value.kind == "seal"


def test_each_end_finds_that_the_other_has_another_token() -> None:
    client = ClientHandshake(bytes(16))
    server = ServerHandshake(TOKEN, client.challenge)
    with pytest.raises(WireError, match="the token is not that of this run"):
        client.finish(server.response, BufferPool())
    with pytest.raises(WireError, match="the token is not that of this run"):
        server.finish(bytes(32), BufferPool())


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 95), bit=st.integers(0, 7))
def test_a_handshake_that_was_changed_opens_no_session(place: int, bit: int) -> None:
    client = ClientHandshake(TOKEN)
    server = ServerHandshake(TOKEN, client.challenge)
    response = bytearray(server.response)
    response[place] ^= 1 << bit
    if client.answers(bytes(response)):
        with pytest.raises(WireError):
            client.finish(bytes(response), BufferPool())
    else:
        assert place < 32


@pytest.mark.parametrize("challenge", [b"", bytes(31), bytes(32), bytes(33)])
def test_a_challenge_that_is_no_public_key(challenge: bytes) -> None:
    with pytest.raises(WireError, match="a public key has 32 bytes"):
        ServerHandshake(TOKEN, challenge)


def test_the_token_is_in_no_message() -> None:
    client = ClientHandshake(TOKEN)
    server = ServerHandshake(TOKEN, client.challenge)
    proof, session = client.finish(server.response, BufferPool())
    sent = b"".join([client.challenge, server.response, proof, *sealed(session)])
    assert TOKEN not in sent
    assert TOKEN.hex().encode() not in sent


def test_memory_is_used_again_when_nothing_views_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_LEAST_BYTES", 1024)
    pool = BufferPool(kept=4096)
    first = pool.take(1500)
    address = first.ctypes.data
    tensor = torch.from_numpy(np.frombuffer(memoryview(first)[4:1004], np.float32).reshape(5, 50))[2]
    del first
    gc.collect()
    assert pool.take(1500).ctypes.data != address, "a tensor views it"
    del tensor
    gc.collect()
    assert pool.take(2000).ctypes.data == address
    many = [pool.take(2048) for _ in range(4)]
    del many
    gc.collect()
    assert pool._left == 0
    assert sum(len(each) for each in pool._free.values()) == 2
