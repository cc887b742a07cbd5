"""Whatever comes from the wire: a refusal that is counted, and nothing else changed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ronde.errors import UsageError
from ronde.server.dense import DenseShard
from ronde.server.parameter_server import ParameterServer
from ronde.server.serving.binary import ReadOnly
from ronde.server.serving.metrics import Metrics
from ronde.server.serving.published import Published
from ronde.server.serving.replica import Replica
from ronde.server.shard import ServerShard
from ronde.server.sparse import SparseShard
from ronde.server.table.config import TableConfig
from ronde.server.table.config_json import write_config
from ronde.server.table.optimizers import SGD
from ronde.server.transport.arena import OwnArena, PeerArena
from ronde.server.transport.service import check_endpoint
from ronde.server.transport.wire import Limits, Message, Opcode, WireError, decode, encode
from server.serving.published import Run

SMALL = Limits(nbytes=1 << 20, meta_bytes=1 << 16, arrays=16)
EXAMPLES = 60


def _frames() -> list[bytes]:
    message = Message(Opcode.PUSH, {"keys": [1], "sizes": [3]}, [np.ones(3, np.float32)], 0, 0, 1, 0, 7)
    return [bytes(frame) for frame in encode(message)]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.binary(max_size=100), max_size=5))
def test_arbitrary_frames_are_no_message(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        decode(frames, SMALL)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_a_message_of_another_form_is_no_message(data: st.DataObject) -> None:
    frames = _frames()
    which = data.draw(st.integers(0, len(frames) - 1))
    change = data.draw(st.sampled_from(["cut", "double", "drop"]))
    cut = frames[which][: data.draw(st.integers(0, len(frames[which]) - 1))]
    frames[which : which + 1] = {"cut": [cut], "double": [frames[which]] * 2, "drop": []}[change]
    with pytest.raises(WireError):
        decode(frames, SMALL)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
_arrays = st.lists(
    st.builds(
        lambda dtype, shape: np.ones(shape, dtype),
        st.sampled_from(["uint8", "int64", "float32", "float16"]),
        st.lists(st.integers(0, 5), max_size=3),
    ),
    max_size=4,
)
_options = {"lr": 0.1, "momentum": 0.9}
_group = {"keys": [1], "options": _options}
# For each operation a request that can be answered.
GOOD: dict[Opcode, tuple[dict[str, Any], list[Any]]] = {
    Opcode.INIT: ({"keys": [1], "sizes": [4], "dtype": "float32"}, [np.ones(4, np.float32)]),
    Opcode.PUSH: ({"keys": [1], "sizes": [4], "dtype": "float32", "pull": 1}, [np.ones(4, np.float32)]),
    Opcode.ADD: ({"keys": [1], "sizes": [4], "dtype": "float32"}, [np.ones(4, np.float32)]),
    Opcode.PUSH_STEP: (
        {
            "keys": [1],
            "sizes": [4],
            "dtype": "float32",
            "optimizer": 0,
            "class": "SGD",
            "options": _options,
        },
        [np.ones(4, np.float32)],
    ),
    Opcode.ADD_GRADIENTS: (
        {"keys": [1], "sizes": [4], "dtype": "float32", "fresh": [0]},
        [np.ones(4, np.float32)],
    ),
    Opcode.SCALE_GRADIENTS: ({"keys": [1], "factor": 0.5}, []),
    Opcode.STEP: (
        {
            "optimizer": 1,
            "class": "Adam",
            "groups": [{"keys": [1], "options": {"lr": 0.1}}],
            "anew": True,
            "default": "float32",
            "values": [[1, "value", "float32", 4]],
            "state": [
                [1, "step", "float32", 1.0],
                [1, "exp_avg", "float32", None],
                [1, "exp_avg_sq", "float32", None],
            ],
        },
        [np.ones(4, np.float32)] * 3,
    ),
    Opcode.GRADIENTS: ({"keys": [1]}, []),
    Opcode.PULL: ({"keys": [1]}, []),
    Opcode.PULL_ROWS: ({"keys": [1], "dim": 2}, [np.array([0, 1])]),
    Opcode.OPTIMIZER_STATE: ({"optimizer": 0, "keys": [1]}, []),
    Opcode.MAKE_TABLE: (
        {"table": 1, "config": write_config(TableConfig(dim=2, optimizer=SGD(lr=0.1), max_rows=100))},
        [],
    ),
    Opcode.UPDATE: (
        {"table": 1, "lr": 0.1},
        [np.array([3, 4]), np.ones((2, 2), np.float32), np.ones(2, np.int64)],
    ),
    Opcode.LOOK_UP: ({"table": 1}, [np.array([3, 4])]),
    Opcode.COUNT: ({"table": 1}, []),
    Opcode.ROWS: ({"table": 1}, []),
    Opcode.HELLO: ({"workers": 1}, []),
    Opcode.STATUS: ({}, []),
    Opcode.LEAVE: ({}, []),
}
# The same of a replica, which makes no changes.
OF_REPLICA: dict[Opcode, tuple[dict[str, Any], list[Any]]] = {
    Opcode.HELLO: ({"workers": 1}, []),
    Opcode.STATUS: ({}, []),
    Opcode.LOOK_UP: ({"table": "user"}, [np.array([3, -4])]),
    Opcode.PREDICT: (
        {"inputs": ["x", "bags_0", "bags_1"]},
        [np.ones((2, 3), np.float32), np.array([3, 4, 5]), np.array([0, 2])],
    ),
}


class Asked:
    """A server without a wire, which knows something already."""

    def __init__(self) -> None:
        self.server = ParameterServer(
            ServerShard({"dense": DenseShard(), "sparse": SparseShard()}), None, workers=1
        )
        self.sequence = 0
        for operation in (Opcode.MAKE_TABLE, Opcode.INIT, Opcode.ADD_GRADIENTS, Opcode.PUSH_STEP):
            assert self.ask(operation, *GOOD[operation]).operation is Opcode.DONE

    def ask(self, operation: Opcode, meta: Any, arrays: Any) -> Message:
        changes = self.server.shard.is_change(operation)
        sequence = self.sequence + 1 if changes else 0
        answers: list[Message] = []
        # As it would come: through JSON, and unwritable.
        message = decode(
            [bytes(each) for each in encode(Message(operation, meta, arrays, sequence=sequence, request=1))]
        )
        try:
            self.server.handle(message, answers.append)
        except WireError as error:
            return message.refuse(str(error), error.kind)
        (answer,) = answers
        if changes and answer.operation is Opcode.DONE:
            self.sequence = sequence
        return answer

    def all(self) -> str:
        """The whole state, to compare."""
        meta, arrays = self.server.shard.state()
        return json.dumps(meta) + repr([(each.dtype, each.tolist()) for each in arrays])


class AskedReplica:
    """A replica without a wire."""

    def __init__(self, folder: Path) -> None:
        run = Run(folder)
        run.step()
        run.publish()
        self._replica = Replica(Published(folder))
        self._made = threading.Event()
        self._server = ReadOnly(self._replica, Metrics(self._replica), self._made.set, {})
        self.close = self._server.close

    def ask(self, operation: Opcode, meta: Any, arrays: Any) -> Message:
        answers: list[Message] = []
        message = decode([bytes(each) for each in encode(Message(operation, meta, arrays, request=1))])
        try:
            self._server.handle(message, answers.append)
        except WireError as error:
            return message.refuse(str(error), error.kind)
        if not answers:
            assert self._made.wait(20)
            self._made.clear()
            self._server.tick()
        (answer,) = answers
        return decode([bytes(each) for each in encode(answer)])

    def all(self) -> str:
        """What is served, to compare."""
        snapshot = self._replica.snapshot
        rows = [(name, table.rows()[1].tolist()) for name, table in snapshot.tables.items()]
        dense = [(name, value.tolist()) for name, value in snapshot.dense.items()]
        return repr((snapshot.version, rows, dense))


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AskedReplica]:
    made = AskedReplica(tmp_path_factory.mktemp("published"))
    yield made
    made.close()


@pytest.mark.parametrize("operation", GOOD, ids=lambda operation: operation.name)
def test_what_can_be_answered_is(operation: Opcode) -> None:
    assert Asked().ask(operation, *GOOD[operation]).operation is Opcode.DONE


@pytest.mark.parametrize("operation", OF_REPLICA, ids=lambda operation: operation.name)
def test_what_a_replica_can_answer_is(operation: Opcode, replica: AskedReplica) -> None:
    assert replica.ask(operation, *OF_REPLICA[operation]).operation is Opcode.DONE


@pytest.mark.parametrize("operation", OF_REPLICA, ids=lambda operation: operation.name)
def test_nonsense_is_refused_by_a_replica(operation: Opcode, replica: AskedReplica) -> None:
    meta, arrays = OF_REPLICA[operation]
    before = replica.all()

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(mutated(meta).filter(lambda told: isinstance(told, dict)), _arrays | st.just(arrays))
    def hostile(told: dict[str, Any], sent: list[Any]) -> None:
        answer = replica.ask(operation, told, sent)
        assert answer.operation in (Opcode.DONE, Opcode.REFUSED)
        assert answer.meta.get("kind") != "defect", answer.meta

    hostile()
    assert replica.all() == before


def mutated(value: Any) -> st.SearchStrategy[Any]:
    """The value, with one thing in it another."""
    choices = [_json]
    if isinstance(value, dict) and value:
        choices += [
            st.just({name: each for name, each in value.items() if name != gone}) for gone in value
        ] + [
            mutated(each).map(lambda other, name=name: {**value, name: other}) for name, each in value.items()
        ]
    if isinstance(value, list):
        choices += [st.just(value + value), st.just(value[:-1])]
        choices += [
            mutated(each).map(lambda other, at=at: [*value[:at], other, *value[at + 1 :]])
            for at, each in enumerate(value)
        ]
    return st.one_of(choices)


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


@pytest.mark.parametrize("operation", GOOD, ids=lambda operation: operation.name)
def test_nonsense_is_refused_and_changes_nothing(operation: Opcode, asked: Asked) -> None:
    meta, arrays = GOOD[operation]

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(mutated(meta).filter(lambda told: isinstance(told, dict)), _arrays | st.just(arrays))
    def hostile(told: dict[str, Any], sent: list[Any]) -> None:
        before = asked.all()
        answer = asked.ask(operation, told, sent)
        assert answer.operation in (Opcode.DONE, Opcode.REFUSED)
        if answer.operation is Opcode.REFUSED:
            if (
                answer.meta["kind"] == "failed"
            ):  # the checks do not find numbers that no formula can divide by
                assert "division by zero" in answer.meta["why"]
            else:
                assert asked.all() == before

    hostile()
    asked.__init__()


@pytest.mark.parametrize("endpoint", ["tcp://*:4000", "tcp://0.0.0.0:4000", "tcp://[::]:4000", "http://a"])
def test_servers_do_not_listen_everywhere(endpoint: str) -> None:
    with pytest.raises(UsageError, match=r"a server (does not listen on all interfaces|listens at)"):
        check_endpoint(endpoint)


def test_only_sealed_memory_is_opened() -> None:
    own, peer = OwnArena(), PeerArena()
    room, _ = own.take(100)
    room[:] = 7
    (described,) = own.described
    pid, descriptor, inode, nbytes = described
    for wrong in (
        [pid, 0, inode, nbytes],  # a terminal or a pipe
        [pid, descriptor, inode + 1, nbytes],
        [pid, descriptor, inode, nbytes * 2],
        [2**40, descriptor, inode, nbytes],
        [pid, descriptor, inode, -1],
        "memory",
    ):
        with pytest.raises(WireError):
            peer.follow([wrong])
    peer.follow([described])
    place = own.place(room)
    assert place is not None
    assert bytes(peer.view(place, 100)) == b"\7" * 100
    for place, size in ((-1, 1), (nbytes, 1), (nbytes - 1, 2), (1 << 60, 1)):
        with pytest.raises(WireError):
            peer.view(place, size)
    torch.from_numpy(room).fill_(1)  # the arena is still whole
    own.close()
