"""A replica by the binary protocol: what is asked is answered to the bit, and nothing can be changed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ronde
from ronde.errors import RondeError, UsageError
from ronde.server.serving.binary import BinaryReplica
from ronde.server.serving.limits import MOST_BYTES, MOST_IDS
from ronde.server.serving.metrics import Metrics
from ronde.server.serving.published import Published
from ronde.server.serving.replica import Replica
from ronde.server.serving.structure import put_together, take_apart
from ronde.server.transport.client import Client, ServerRefused
from ronde.server.transport.wire import Opcode
from server.serving.published import Run, inputs

TOKEN = "0123456789abcdef" * 2
# What a client may ask of a replica.
KNOWN = {Opcode.HELLO, Opcode.STATUS, Opcode.LOOK_UP, Opcode.PREDICT}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = Run(tmp_path_factory.mktemp("published"))
    made.step()
    made.publish()
    return made


@contextlib.contextmanager
def served(replica: Replica) -> Iterator[tuple[BinaryReplica, Metrics]]:
    binary = BinaryReplica("tcp://127.0.0.1:*", bytes.fromhex(TOKEN))
    metrics = Metrics(replica, binary.refused)
    binary.start(replica, metrics)
    try:
        yield binary, metrics
    finally:
        binary.close()


@pytest.fixture(scope="module")
def serving(run: Run) -> Iterator[tuple[BinaryReplica, Metrics]]:
    with served(Replica(Published(run.folder))) as both:
        yield both


@pytest.fixture(scope="module")
def client(serving: tuple[BinaryReplica, Metrics]) -> Iterator[ronde.ReplicaClient]:
    with ronde.ReplicaClient(serving[0].endpoint, token=TOKEN) as made:
        yield made


def test_rows(client: ronde.ReplicaClient, run: Run) -> None:
    ids = np.array([[3, -5, 2**62], [3, -(2**63), 2**63 - 1]])
    rows, version = client.look_up("user", ids)
    assert version == run.version
    assert (rows.dtype, rows.shape) == (np.float32, (2, 3, 4))
    assert np.array_equal(rows, run.model.user.table.look_up(ids.ravel()).reshape(2, 3, 4))
    assert client.look_up("words", []).rows.shape == (0, 3)
    assert np.array_equal(client.look_up("user", np.uint8([3]))[0], rows[0, :1])
    rows[:] = 0  # it is the caller's own


def test_predictions(client: ronde.ReplicaClient, run: Run) -> None:
    x, (words, offsets) = inputs(3)
    by_name = {"x": x.numpy(), "bags_0": words.numpy(), "bags_1": offsets.tolist()}
    expected = run.score(x, (words, offsets)).numpy()
    for given_ in (by_name, list(by_name.values())):
        outputs, version = client.predict(given_)
        assert version == run.version
        assert np.array_equal(outputs["score"], expected)


def test_a_version_that_comes(run: Run) -> None:
    replica = Replica(Published(run.folder))
    with served(replica) as (binary, _), ronde.ReplicaClient(binary.endpoint, token=TOKEN) as client:
        before = client.status()
        run.step()
        newest = run.publish()
        assert replica.refresh()
        status = client.status()
        assert np.array_equal(client.look_up("user", np.arange(50)).rows, run.rows())
    assert (before["version"], before["lag"]) == (newest - 1, None)
    assert (status["version"], status["step"], status["pinned"]) == (newest, newest, None)
    assert status["lag"] > 0
    assert status["age"] > 0
    assert status["tables"] == {"user": 4, "words": 3}
    assert status["inputs"]["x"] == {"dtype": "float32", "shape": [None, 3]}
    assert status["trouble"] == ""


@pytest.mark.parametrize("operation", sorted({*Opcode} - KNOWN - {Opcode.DONE, Opcode.REFUSED}))
def test_nothing_is_changed(operation: Opcode, serving: tuple[BinaryReplica, Metrics]) -> None:
    wire = Client([serving[0].endpoint], bytes.fromhex(TOKEN), timeout=20)
    request = wire.send(0, operation, {"table": "user", "keys": [1]}, changes=True)
    with pytest.raises(ServerRefused, match=f"{operation.name.lower()}: a replica is read-only"):
        wire.wait([request])
    (answer,) = wire.wait([wire.send(0, Opcode.STATUS)])
    assert answer.meta["refused"]["read-only"] >= 1
    wire.close()


def test_what_prometheus_reads(serving: tuple[BinaryReplica, Metrics], client: ronde.ReplicaClient) -> None:
    client.look_up("user", [1])
    with pytest.raises(ServerRefused):
        client.look_up("nix", [1])
    client.predict([each.numpy() for each in (inputs(2)[0], *inputs(2)[1])])
    text = serving[1].text().decode()
    for line in (
        'ronde_requests_total{endpoint="binary-lookup",status="refused"}',
        'ronde_requests_total{endpoint="binary-predict",status="done"}',
        'ronde_refused_messages_total{kind="table"}',
        'ronde_request_seconds_count{endpoint="binary-lookup"}',
    ):
        assert f"\n{line} " in text


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda c: c.look_up("u", [3]), ServerRefused, "there is no table 'u'; the model has user, words"),
        (lambda c: c.look_up(3, [3]), UsageError, "give the name of the table, not a int"),
        (lambda c: c.look_up("user", [0.5]), UsageError, "ids must be whole numbers, not float64"),
        (lambda c: c.look_up("user", [2**63]), UsageError, "ids must be from -2"),
        (lambda c: c.look_up("user", [2**70]), UsageError, "ids must be whole numbers, not object"),
        (lambda c: c.look_up("user", np.zeros(MOST_IDS + 1, int)), UsageError, "100001 ids were given"),
        (lambda c: c.predict(np.zeros(3)), UsageError, "inputs is a ndarray; give a dict"),
        (lambda c: c.predict({"x": "a"}), UsageError, "input x is not an array of numbers: numpy makes str"),
        (lambda c: c.predict([[[1], [1, 2]]]), UsageError, "input 0 is not an array of numbers"),
        (lambda c: c.predict([np.zeros(MOST_BYTES // 8 + 1)]), UsageError, "bytes were given; 8388608"),
        (lambda c: c.predict([]), ServerRefused, "0 inputs were given; the model takes 3: x, bags_0, bags_1"),
        (lambda c: c.predict({"y": [1]}), ServerRefused, "there is no input y; the model takes x, bags_0"),
        (
            lambda c: ronde.ReplicaClient("http://127.0.0.1:1"),
            UsageError,
            "give the address that ronde serve --binary printed",
        ),
        (
            lambda c: ronde.ReplicaClient("tcp://nix", token=TOKEN),
            UsageError,
            "tcp://nix",
        ),
        (lambda c: ronde.ReplicaClient(c.endpoint, token="?"), UsageError, "RONDE_SERVER_TOKEN is not one"),
        (lambda c: ronde.ReplicaClient(c.endpoint, token=TOKEN, timeout=0), UsageError, "timeout=0 is not"),
        (
            lambda c: ronde.ReplicaClient(c.endpoint, token="0" * 32),
            ServerRefused,
            "the token is not that of",
        ),
        (
            lambda c: ronde.ReplicaClient("tcp://127.0.0.1:9", token=TOKEN, timeout=0.1),
            RondeError,
            "no replica has answered at tcp://127.0.0.1:9 for 0.1 s",
        ),
    ],
)
def test_mistakes_are_explained(ask: Any, error: Any, words: str, client: ronde.ReplicaClient) -> None:
    with pytest.raises(error) as raised:
        ask(client)
    assert words in str(raised.value)
    assert client.look_up("user", [3]).rows.shape == (1, 4), "it goes on"


def test_a_client_that_was_closed(serving: tuple[BinaryReplica, Metrics]) -> None:
    with ronde.ReplicaClient(serving[0].endpoint, token=TOKEN) as client:
        pass
    with pytest.raises(UsageError, match=r"this client was closed; make another"):
        client.status()


def test_a_model_without_a_program(tmp_path: Any) -> None:
    bare = Run(tmp_path, program=False)
    bare.step()
    bare.publish()
    with (
        served(Replica(Published(bare.folder))) as (binary, _),
        ronde.ReplicaClient(binary.endpoint, token=TOKEN) as client,
        pytest.raises(ServerRefused, match="this model has no program to predict by: it was not asked for"),
    ):
        client.predict([])


_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.text(max_size=3)
    | st.builds(
        np.ones,
        st.lists(st.integers(0, 3), max_size=2).map(tuple),
        st.sampled_from(["bool", "int16", "uint16", "int64", "float16", "float64"]),
    )
)
_values = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["array", "dict", "a"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(_values)
def test_structures_come_back(value: Any) -> None:
    arrays: list[Any] = []
    told = take_apart(value, lambda leaf: leaf if isinstance(leaf, np.ndarray) else None, arrays)
    back = put_together(json.loads(json.dumps(told)), arrays)
    assert repr(back) == repr(value)


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match="complex64 cannot be sent"):
        take_apart(
            [torch.zeros(1, dtype=torch.complex64)],
            lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else None,
            [],
        )
