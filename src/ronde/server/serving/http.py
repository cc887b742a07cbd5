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

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, TypeVar

import msgspec
import numpy as np
import orjson
import torch
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ronde.errors import RondeError
from ronde.server.serving.durable import DamagedFile
from ronde.server.serving.limits import MOST_BYTES, MOST_IDS
from ronde.server.serving.metrics import Metrics
from ronde.server.serving.program import NoProgram, Unfit
from ronde.server.serving.replica import NoSuchTable, NoSuchVersion, Replica

__all__ = ["application", "encode"]

_STATUS = {NoSuchTable: 404, NoSuchVersion: 404, NoProgram: 409, DamagedFile: 409, Unfit: 422}

Answer = Callable[[Request], Awaitable[bytes]]


class _Lookup(msgspec.Struct, forbid_unknown_fields=True):
    table: str
    ids: list[int]


class _Predict(msgspec.Struct, forbid_unknown_fields=True):
    inputs: dict[str, Any] | list[Any]


class _Rollback(msgspec.Struct, forbid_unknown_fields=True):
    version: int


_Form = TypeVar("_Form", _Lookup, _Predict, _Rollback)


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
                body = encode({"error": str(error)})
            metrics.add(name, status, perf_counter() - begin)
            return Response(body, status, media_type="application/json")

        return respond

    async def told(request: Request) -> Response:
        del request
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = f"{request.method} {request.url.path}: {error.detail}"
        return Response(encode({"error": text}), error.status_code, media_type="application/json")

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
        asked = await _decoded(request, _Lookup)
        ids = _ids(asked.ids)
        snapshot = self._replica.snapshot
        rows = self._replica.look_up(asked.table, ids, snapshot)
        return encode({"version": snapshot.version, "rows": rows})

    async def predict(self, request: Request) -> bytes:
        asked = await _decoded(request, _Predict)
        snapshot = self._replica.snapshot
        return await run_in_threadpool(self._predict, asked.inputs, snapshot)

    def _predict(self, inputs: Any, snapshot: Any) -> bytes:
        outputs = self._replica.predict(inputs, snapshot)
        try:
            return encode({"version": snapshot.version, "outputs": outputs})
        except TypeError as error:
            raise Unfit(f"the model returns a value that JSON cannot hold: {error} [R745]") from None

    async def versions(self, request: Request) -> bytes:
        del request
        return await run_in_threadpool(self._versions)

    def _versions(self) -> bytes:
        replica = self._replica
        told = {"serving": replica.snapshot.version, "pinned": replica.pinned, "versions": replica.versions()}
        return encode(told)

    async def roll_back(self, request: Request) -> bytes:
        asked = await _decoded(request, _Rollback)
        await run_in_threadpool(self._replica.roll_back, asked.version)
        return await run_in_threadpool(self._versions)

    async def follow(self, request: Request) -> bytes:
        await _body(request)
        await run_in_threadpool(self._replica.follow)
        return await run_in_threadpool(self._versions)

    async def health(self, request: Request) -> bytes:
        del request
        replica, snapshot = self._replica, self._replica.snapshot
        return encode(
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


async def _decoded(request: Request, form: type[_Form]) -> _Form:
    """Return the request's JSON object, checked by the fields of `form`."""
    body = await _body(request)
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        fields = ", ".join(f'"{name}": ...' for name in form.__struct_fields__)
        raise _Malformed(f"the request must be {{{fields}}}: {error} [R744]") from None


def _ids(given: list[int]) -> np.ndarray[Any, Any]:
    if len(given) > MOST_IDS:
        raise _Malformed(f"{len(given)} ids were asked for; {MOST_IDS} are possible at a time [R744]", 413)
    try:
        return np.array(given, np.int64)
    except OverflowError:
        raise _Malformed("ids must be from -2**63 to 2**63 - 1 [R744]") from None


def encode(value: Any) -> bytes:
    """Encode as JSON; float32 arrays restore bit for bit, non-finite floats become null."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else str(value)
