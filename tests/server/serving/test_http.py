"""Requests over HTTP: right ones are answered, whatever else comes is refused with a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from ronde.messages import lift
from ronde.server.serving.http import application, encode
from ronde.server.serving.limits import MOST_BYTES, MOST_IDS
from ronde.server.serving.published import Published
from ronde.server.serving.replica import Replica
from server.serving.published import Run, inputs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = Run(tmp_path_factory.mktemp("published"))
    made.step()
    made.publish()
    return made


@pytest.fixture
def client(run: Run) -> Iterator[TestClient]:
    with TestClient(application(Replica(Published(run.folder)))) as made:
        yield made


def error(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]


def test_rows_and_predictions(client: TestClient, run: Run) -> None:
    ids = [3, -5, 2**62, 3, -(2**63)]
    answer = client.post("/v1/lookup", json={"table": "user", "ids": ids}).json()
    assert answer["version"] == run.version
    assert np.array_equal(np.float32(answer["rows"]), run.model.user.table.look_up(np.array(ids)))
    x, (words, offsets) = inputs(3)
    given_ = {"x": x.tolist(), "bags_0": words.tolist(), "bags_1": offsets.tolist()}
    outputs = client.post("/v1/predict", json={"inputs": given_}).json()["outputs"]
    assert np.array_equal(np.float32(outputs["score"]), run.score(x, (words, offsets)).numpy())
    assert client.post("/v1/lookup", json={"table": "user", "ids": []}).json()["rows"] == []


def test_every_float32_is_restored() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint64).astype(np.uint32)
    rows = bits.view(np.float32)
    rows = rows[np.isfinite(rows)][:99_000].reshape(-1, 9).copy()
    rows[0] = [0, -0.0, 1, 1e-45, 3.4028235e38, 1.1754944e-38, 9.9999998e9, 123456.79, 16777216]
    back = np.array(json.loads(encode(rows)), np.float64).astype(np.float32)
    assert np.array_equal(back, rows)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array([[np.nan, 1.5], [np.inf, -2]], np.float32), "[[null,1.5],[null,-2.0]]"),
        (np.empty((0, 3), np.float32), "[]"),
        (
            {"a": torch.tensor([0.5, np.inf]), 1: (torch.tensor(True), None)},
            '{"a":[0.5,null],"1":[true,null]}',
        ),
        (torch.tensor([[1.5]], dtype=torch.bfloat16), "[[1.5]]"),
        ([1 + 2j, "text"], '["(1+2j)","text"]'),
    ],
)
def test_values_as_json(value: Any, text: str) -> None:
    assert encode(value).decode() == text


def test_versions(client: TestClient, run: Run) -> None:
    first = run.version
    run.step()
    newest = run.publish()
    known = client.get("/v1/versions").json()
    assert (known["serving"], known["pinned"], known["versions"][-1]) == (first, None, newest)
    assert client.post("/v1/follow", content=b"").json()["serving"] == newest
    told = client.post("/v1/rollback", json={"version": first}).json()
    assert (told["serving"], told["pinned"]) == (first, first)
    status, words = error(client.post("/v1/rollback", json={"version": 77}))
    assert (status, words.startswith("there is no version 77; there are 1")) == (404, True)
    health = client.get("/healthz").json()
    assert (health["version"], health["trouble"]) == (first, "")
    assert health["tables"] == {"user": 4, "words": 3}
    assert health["inputs"]["x"] == {"dtype": "float32", "shape": [None, 3]}


def test_what_prometheus_reads(client: TestClient) -> None:
    client.post("/v1/lookup", json={"table": "user", "ids": [1, 99999]})
    client.post("/v1/lookup", json={"table": "nix", "ids": [1]})
    text = client.get("/metrics").text
    for line in (
        'ronde_requests_total{endpoint="lookup",status="200"} 1.0',
        'ronde_requests_total{endpoint="lookup",status="404"} 1.0',
        "ronde_ids_looked_up_total 2.0",
        "ronde_ids_found_total 1.0",
        'ronde_request_seconds_count{endpoint="lookup"} 2.0',
        'ronde_request_seconds_bucket{endpoint="lookup",le="+Inf"} 2.0',
        "ronde_healthy 1.0",
        "ronde_lag_seconds NaN",
    ):
        assert line in text.splitlines()
    for name in ("ronde_hit_rate", "ronde_version_age_seconds", 'ronde_rows{table="user"}'):
        assert f"\n{name} " in text


LOOK_UP = 'the request must be {"table": ..., "ids": ...}'
PREDICT = 'the request must be {"inputs": ...}: Expected `object | array`, got `int` - at `$.inputs`'
ROLL_BACK = 'the request must be {"version": ...}: Expected `int`, got `bool` - at `$.version`'


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("lookup", "", (400, f"{LOOK_UP}: Input data was truncated")),
        ("lookup", "[" * 100_000, (400, f"{LOOK_UP}: Expected `object`, got `array`")),
        ("lookup", {"table": "user"}, (400, f"{LOOK_UP}: Object missing required field `ids`")),
        ("lookup", {"table": 3, "ids": []}, (400, f"{LOOK_UP}: Expected `str`, got `int` - at `$.table`")),
        (
            "lookup",
            {"table": "user", "ids": 3},
            (400, f"{LOOK_UP}: Expected `array`, got `int` - at `$.ids`"),
        ),
        ("lookup", {"table": "user", "ids": [2**63]}, (400, "ids must be from -2**63 to 2**63 - 1")),
        ("lookup", {"table": "u", "ids": [3]}, (404, "there is no table 'u'; the model has user, words")),
        ("predict", {"inputs": 3}, (400, PREDICT)),
        ("predict", {"inputs": []}, (422, "0 inputs were given; the model takes 3: x, bags_0, bags_1")),
        ("rollback", {"version": True}, (400, ROLL_BACK)),
        ("nix", "", (404, "POST /v1/nix: Not Found")),
        ("versions", "", (405, "POST /v1/versions: Method Not Allowed")),
    ],
)
def test_what_is_refused(client: TestClient, path: str, body: Any, expected: tuple[int, str]) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    status, words = error(client.post(f"/v1/{path}", content=content))
    assert (status, lift(words)[1]) == expected


def test_too_much_is_refused(client: TestClient) -> None:
    status, words = error(client.post("/v1/lookup", json={"table": "user", "ids": [1] * (MOST_IDS + 1)}))
    assert (status, words) == (
        413,
        f"{MOST_IDS + 1} ids were asked for; {MOST_IDS} are possible at a time [R744]",
    )
    status, words = error(client.post("/v1/predict", content=b" " * (MOST_BYTES + 1)))
    assert (status, words) == (
        413,
        f"a request has at most {MOST_BYTES} bytes; ask for less at a time [R744]",
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "table": st.just("user") | JSON,
        "ids": JSON,
        "version": JSON,
        "inputs": JSON | st.fixed_dictionaries({"x": JSON, "bags_0": JSON, "bags_1": JSON}),
    },
)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    path=st.sampled_from(["lookup", "predict", "rollback"]),
    body=st.binary(max_size=40) | JSON.map(json.dumps) | FIELDS.map(json.dumps),
)
def test_nothing_breaks_it(client: TestClient, path: str, body: Any) -> None:
    answer = client.post(f"/v1/{path}", content=body)
    assert answer.status_code in (200, 400, 404, 422)
    if answer.status_code != 200:
        assert len(answer.json()["error"]) > 10
