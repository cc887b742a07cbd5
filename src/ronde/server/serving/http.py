"""A replica over HTTP, with JSON requests and answers.

    POST /v1/lookup    {"table": "user", "ids": [17, -5]}   {"version": 7, "rows": [[...], [...]]}
    POST /v1/predict   {"inputs": {"x": [[1, 2]]}}          {"version": 7, "outputs": ...}
    GET  /v1/versions                                       {"serving": 7, "pinned": null, "versions": [1, 7]}
    POST /v1/rollback  {"version": 1}                       as above; serves that version from now on
    POST /v1/follow    {}                                   as above; serves the newest again
    GET  /healthz, GET /metrics

Errors are answered by {"error": "..."}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ronde.errors import RondeError
from ronde.server.serving.durable import DamagedFile
from ronde.server.serving.json_rows import json_of_rows
from ronde.server.serving.limits import MOST_BYTES, MOST_IDS
from ronde.server.serving.metrics import Metrics
from ronde.server.serving.program import NoProgram, Unfit
from ronde.server.serving.replica import NoSuchTable, NoSuchVersion, Replica

__all__ = ["application"]

_STATUS = {NoSuchTable: 404, NoSuchVersion: 404, NoProgram: 409, DamagedFile: 409, Unfit: 422}

Answer = Callable[[Request], Awaitable[bytes]]


class _Malformed(RondeError):
    """Raised when a request does not have the form that its endpoint expects."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def application(replica: Replica, metrics: Metrics | None = None) -> Starlette:
    """Return the ASGI application that answers requests to a replica.

    Args:
        metrics: counters of requests; None: new ones.
    """
    metrics = metrics or Metrics(replica)
    json_of_rows(np.zeros((1, 1), np.float32))  # compile now, not at the first request
    endpoints = _Endpoints(replica)

    def timed(name: str, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            begin = perf_counter()
            try:
                status, body = 200, await answer(request)
            except ClientDisconnect:
                status, body = 400, b""
            except RondeError as error:
                status = error.status if isinstance(error, _Malformed) else _STATUS.get(type(error), 500)
                body = _json({"error": str(error)})
            metrics.add(name, status, perf_counter() - begin)
            return Response(body, status, media_type="application/json")

        return respond

    async def told(request: Request) -> Response:
        del request
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = f"{request.method} {request.url.path}: {error.detail}"
        return Response(_json({"error": text}), error.status_code, media_type="application/json")

    named = {
        "/v1/lookup": ("lookup", "POST", endpoints.look_up),
        "/v1/predict": ("predict", "POST", endpoints.predict),
        "/v1/versions": ("versions", "GET", endpoints.versions),
        "/v1/rollback": ("rollback", "POST", endpoints.roll_back),
        "/v1/follow": ("follow", "POST", endpoints.follow),
        "/healthz": ("healthz", "GET", endpoints.health),
    }
    routes = [
        Route(path, timed(name, answer), methods=[verb]) for path, (name, verb, answer) in named.items()
    ]
    routes.append(Route("/metrics", told, methods=["GET"]))
    return Starlette(routes=routes, exception_handlers={HTTPException: refused})


class _Endpoints:
    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def look_up(self, request: Request) -> bytes:
        asked = await _object(request, {"table": str, "ids": list})
        ids = _ids(asked["ids"])
        snapshot = self._replica.snapshot
        rows = json_of_rows(self._replica.look_up(asked["table"], ids, snapshot))
        return b'{"version":%d,"rows":%b}' % (snapshot.version, rows)

    async def predict(self, request: Request) -> bytes:
        asked = await _object(request, {"inputs": (dict, list)})
        snapshot = self._replica.snapshot
        return await run_in_threadpool(self._predict, asked["inputs"], snapshot)

    def _predict(self, inputs: Any, snapshot: Any) -> bytes:
        outputs = self._replica.predict(inputs, snapshot)
        return _json({"version": snapshot.version, "outputs": _plain(outputs)})

    async def versions(self, request: Request) -> bytes:
        del request
        return await run_in_threadpool(self._versions)

    def _versions(self) -> bytes:
        replica = self._replica
        told = {"serving": replica.snapshot.version, "pinned": replica.pinned, "versions": replica.versions()}
        return _json(told)

    async def roll_back(self, request: Request) -> bytes:
        version = (await _object(request, {"version": int}))["version"]
        await run_in_threadpool(self._replica.roll_back, version)
        return await run_in_threadpool(self._versions)

    async def follow(self, request: Request) -> bytes:
        await _body(request)
        await run_in_threadpool(self._replica.follow)
        return await run_in_threadpool(self._versions)

    async def health(self, request: Request) -> bytes:
        del request
        replica, snapshot = self._replica, self._replica.snapshot
        return _json(
            {
                "version": snapshot.version,
                "step": snapshot.step,
                "trouble": replica.trouble,
                "tables": snapshot.dims,
                "inputs": snapshot.inputs,
                "no_program": snapshot.no_program,
            }
        )


async def _body(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BYTES:
            raise _Malformed(f"a request has at most {MOST_BYTES} bytes; ask for less at a time [R744]", 413)
        parts.append(part)
    return b"".join(parts)


async def _object(request: Request, fields: dict[str, Any]) -> dict[str, Any]:
    """Return a request's JSON object, checked for exactly these fields and types."""
    body = await _body(request)
    form = "{" + ", ".join(f'"{name}": ...' for name in fields) + "}"
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise _Malformed(f"the request is not JSON; it is to be {form} [R744]") from None
    if not isinstance(asked, dict) or set(asked) != set(fields):
        raise _Malformed(f"the request is to be {form} [R744]")
    for name, kind in fields.items():
        if not isinstance(asked[name], kind) or isinstance(asked[name], bool):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            wanted = " or ".join(_JSON_NAMES[each] for each in kinds)
            raise _Malformed(f"{name} is to be {wanted} [R744]")
    return asked


_JSON_NAMES = {str: "a string", list: "a list", dict: "an object", int: "a whole number"}


def _ids(given: list[Any]) -> np.ndarray[Any, Any]:
    if len(given) > MOST_IDS:
        raise _Malformed(f"{len(given)} ids were asked for; {MOST_IDS} are possible at a time [R744]", 413)
    if not given:
        return np.empty(0, np.int64)
    try:
        ids = np.array(given)
    except (ValueError, OverflowError, TypeError):
        ids = np.empty((0, 0))
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise _Malformed("ids is to be a list of whole numbers from -2**63 to 2**63 - 1 [R744]")
    return ids


def _plain(value: Any) -> Any:
    """Convert a model's outputs to JSON values; non-finite floats become null."""
    if isinstance(value, torch.Tensor):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (int, str, type(None))) else str(value)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
