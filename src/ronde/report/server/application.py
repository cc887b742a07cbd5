"""The live page over HTTP.

    GET /?run=NAME&run=NAME     the page, which is the same for all runs
    GET /events?run=...         its state, and again whenever it changes, as server-sent events

The state is always sent as a whole, so a reader that comes late, or again after the server was started anew,
misses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ronde import __version__
from ronde.report.document import encoded
from ronde.report.page import live_page, policy
from ronde.report.server.feed import Feed, News
from ronde.report.server.runs import ListOfRuns, OneRun, Runs

__all__ = ["Readers", "application"]

MOST_RUNS = 8
_ALIVE_S = 5.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'",
}


def application(readers: Readers, *, token: str = "", hosts: Sequence[str] = ("*",)) -> Starlette:
    """Return the ASGI application that shows runs.

    Args:
        readers: states of pages.
        token: word that each request has as its parameter `token`; "": none is needed.
        hosts: names by which browsers may call the server; pages of others cannot read it by a name of
            theirs that leads here.
    """
    page = live_page()

    async def show(request: Request) -> Response:
        del request
        return HTMLResponse(page, headers=_HEADERS)

    async def events(request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if len(names) > MOST_RUNS:
            return PlainTextResponse(f"{len(names)} runs; at most {MOST_RUNS} at once", 400)
        stream = readers.states(names, request.is_disconnected)
        return StreamingResponse(stream, media_type="text/event-stream", headers=_HEADERS)

    def guarded(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            given = request.query_params.get("token", "")
            if not hmac.compare_digest(given.encode(), token.encode()):
                return PlainTextResponse("The address needs the token that ronde ui has printed.", 403)
            return await answer(request)

        return respond

    routes = [Route("/", guarded(show)), Route("/events", guarded(events))]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))])


@final
class Readers:
    """States of pages, for all readers.

    Args:
        every: seconds between two looks at a run, or more where these are slow.
    """

    def __init__(self, runs: Runs, *, every: float = 1.0) -> None:
        self._runs, self._every = runs, every
        # One thread: two runs that are read at once would be slower, and take twice the memory.
        self._executor = ThreadPoolExecutor(1, "ronde-ui")
        self._feeds: dict[str | None, Feed] = {}
        self._news: News | None = None

    def close(self) -> None:
        """End the thread that reads runs."""
        self._executor.shutdown(cancel_futures=True)

    async def states(
        self, names: Sequence[str], is_gone: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the state of a page as events, at first and after each change.

        Args:
            names: runs of the page; none: all of the folder.
            is_gone: whether the reader has gone.
        """
        if self._news is None:
            self._news = News()
        yield b"retry: 1000\n\n"
        while not await is_gone():
            is_one = self._runs.is_one()
            chosen: Sequence[str | None] = list(names) or ([self._runs.root.name] if is_one else [None])
            async with contextlib.aclosing(self._of(chosen, is_one, is_gone)) as events:
                async for event in events:
                    yield event
                    if not names and is_one != self._runs.is_one():  # an empty folder has become a run
                        break

    async def _of(
        self, chosen: Sequence[str | None], is_one: bool, is_gone: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        assert self._news is not None
        sent: list[int] = []
        async with contextlib.AsyncExitStack() as stack:
            feeds = [await stack.enter_async_context(self._followed(name)) for name in chosen]
            while not await is_gone():
                news = self._news.next()
                versions = [feed.version for feed in feeds]
                if all(versions) and versions != sent:
                    sent = versions
                    yield b"event: page\ndata: " + self._state(chosen, feeds, is_one) + b"\n\n"
                try:
                    await asyncio.wait_for(news.wait(), _ALIVE_S)
                except asyncio.TimeoutError:
                    yield b": alive\n\n"

    @contextlib.asynccontextmanager
    async def _followed(self, name: str | None) -> AsyncIterator[Feed]:
        feed = self._feeds.get(name)
        if feed is None:
            assert self._news is not None
            renew = ListOfRuns(self._runs).renewed if name is None else OneRun(self._runs, name).renewed
            feed = self._feeds[name] = Feed(renew, self._executor, self._news, every=self._every)
        try:
            async with feed.followed():
                yield feed
        finally:
            if not feed.is_followed and self._feeds.get(name) is feed:
                del self._feeds[name]

    def _state(self, chosen: Sequence[str | None], feeds: Sequence[Feed], is_one: bool) -> bytes:
        head = {"ronde": __version__, "root": str(self._runs.root), "home": not is_one and chosen != [None]}
        head |= {
            "missing": [name for name, feed in zip(chosen, feeds) if name is not None and not feed.content]
        }
        kind = "list" if chosen == [None] else "runs"
        runs = (
            feeds[0].content
            if kind == "list"
            else b"[" + b",".join(filter(None, (feed.content for feed in feeds))) + b"]"
        )
        return encoded({**head, "kind": kind})[:-1] + b',"runs":' + runs + b"}"
