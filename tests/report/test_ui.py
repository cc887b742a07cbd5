"""The live page over HTTP: what it sends, when, to whom; and what it survives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient

from made_run import made_run
from ronde.cli import main
from ronde.report.run import root_of_runs
from ronde.report.server.application import Readers, application
from ronde.report.server.runs import ListOfRuns, OneRun, Runs
from ronde.trace.events import write_event
from ronde.trace.run_directory import RunDirectory


def test_runs_of_a_folder_are_found_but_not_the_parts_of_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        made_run(tmp_path / name, steps=3)
    made_run(tmp_path / "a" / "host-1", steps=3)
    made_run(tmp_path / "20261121-035133-5f0c2a00dead", steps=3)  # of one host of several
    (tmp_path / "other").mkdir()
    assert sorted(Runs(tmp_path).paths()) == ["a", "b"]
    assert list(Runs(tmp_path / "a").paths()) == ["a"]
    assert Runs(tmp_path / "nothing").paths() == {}


def test_a_list_has_the_newest_first_and_what_is_over_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_run(tmp_path / "over", steps=3)
    directory = RunDirectory.create(tmp_path / "goes-on", {})
    made_run(directory.path, steps=3, ended=False)
    seen = ListOfRuns(Runs(tmp_path))
    first = json.loads(seen.renewed())
    assert [(each["id"], each["life"]) for each in first] == [("goes-on", "runs"), ("over", "ended")]
    assert first[0]["loss"] == pytest.approx(2.235, abs=0.01)
    looked: list[Path] = []
    from ronde.report.server import runs

    look = runs.look_at_run
    monkeypatch.setattr(runs, "look_at_run", lambda path: looked.append(path) or look(path))
    assert json.loads(seen.renewed())[1] == first[1]
    assert looked == [directory.path]
    directory.release()


def test_a_run_is_sent_again_when_something_has_happened(tmp_path: Path) -> None:
    one = OneRun(Runs(tmp_path), "a")
    assert one.renewed() == b""
    assert one.renewed() is None
    folder = made_run(tmp_path / "a", steps=3)
    assert json.loads(one.renewed() or b"")["life"] == "ended"
    assert one.renewed() is None
    write_event(folder, "notice", "look here")
    assert json.loads(one.renewed() or b"")["events"][-1]["text"] == "look here"
    shutil.rmtree(folder)
    assert one.renewed() == b""


def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    made_run(tmp_path / "secret", steps=3)
    (tmp_path / "runs").mkdir()
    for name in ("../secret", str(tmp_path / "secret"), "", "."):
        assert OneRun(Runs(tmp_path / "runs"), name).renewed() == b""


async def _present() -> bool:
    return False


async def _next(states: AsyncGenerator[bytes, None]) -> dict[str, Any]:
    async for event in states:
        if event.startswith(b"event: page\ndata: "):
            return json.loads(event.split(b"data: ", 1)[1])
    raise AssertionError("the stream has ended")


def test_a_page_sees_a_run_appear_go_on_and_end(tmp_path: Path) -> None:
    async def follow() -> list[Any]:
        told: list[Any] = []
        states = Readers(Runs(tmp_path), every=0.01).states(["a"], _present)
        async with contextlib.aclosing(states):
            state = await _next(states)
            told.append((state["missing"], state["runs"]))
            directory = RunDirectory.create(tmp_path / "a", {})
            made_run(directory.path, steps=3, ended=False)
            while not (state["runs"] and state["runs"][0]["ranks"]):
                state = await _next(states)
            told.append(state["runs"][0]["life"])
            write_event(directory.path, "end", "rank 1 was killed by SIGKILL", exit_code=137)
            directory.release()
            while state["runs"][0]["life"] == "runs":
                state = await _next(states)
            told.append((state["runs"][0]["life"], state["runs"][0]["cause"]["summary"]))
        return told

    assert asyncio.run(follow()) == [(["a"], []), "runs", ("failed", "rank 1 was killed by SIGKILL")]


def test_an_empty_folder_becomes_a_run(tmp_path: Path) -> None:
    async def follow() -> list[str]:
        states = Readers(Runs(tmp_path / "run"), every=0.01).states([], _present)
        async with contextlib.aclosing(states):
            kinds = [(await _next(states))["kind"]]
            made_run(tmp_path / "run", steps=3)
            while kinds[-1] == "list":
                kinds.append((await _next(states))["kind"])
            return kinds

    assert asyncio.run(follow())[-1] == "runs"


def test_many_readers_cost_what_one_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_run(tmp_path / "a", steps=3)
    from ronde.report.server import runs

    made: list[str] = []
    document = runs.document
    monkeypatch.setattr(runs, "document", lambda run: made.append(run.path.name) or document(run))

    async def follow() -> list[dict[str, Any]]:
        readers = Readers(Runs(tmp_path), every=0.01)
        all_states = [readers.states(["a"], _present) for _ in range(30)]
        async with contextlib.AsyncExitStack() as stack:
            for states in all_states:
                await stack.enter_async_context(contextlib.aclosing(states))
            return list(await asyncio.gather(*map(_next, all_states)))

    found = asyncio.run(follow())
    assert all(state == found[0] for state in found)
    assert made == ["a"]


def test_the_page_is_one_document_that_nobody_may_frame(tmp_path: Path) -> None:
    with TestClient(application(Readers(Runs(tmp_path)))) as client:
        answer = client.get("/?run=a")
        assert answer.status_code == 200
        assert "data-live" in answer.text
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert client.get("/events", params=[("run", str(each)) for each in range(9)]).status_code == 400
        assert client.get("/other").status_code == 404
        assert client.post("/").status_code == 405


def test_a_token_is_asked_of_every_request(tmp_path: Path) -> None:
    with TestClient(application(Readers(Runs(tmp_path)), token="word")) as client:
        for path in ("/", "/events", "/?token=other", "/events?token=wör"):
            assert client.get(path).status_code == 403
        assert client.get("/?token=word").status_code == 200


def test_pages_of_others_cannot_read_a_local_server(tmp_path: Path) -> None:
    with TestClient(
        application(Readers(Runs(tmp_path)), hosts=("127.0.0.1",)), base_url="http://127.0.0.1"
    ) as client:
        assert client.get("/").status_code == 200
        assert client.get("/", headers={"host": "evil.example"}).status_code == 400


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        contextlib.closing(Readers(Runs(folder))) as readers,
    ):
        config = uvicorn.Config(
            application(readers), log_level="critical", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def test_a_reader_that_comes_again_is_told_all(tmp_path: Path) -> None:
    made_run(tmp_path / "a", steps=3)
    for _ in range(2):  # a server that was started anew knows as much
        with serving(tmp_path) as address, httpx.stream("GET", f"{address}/events?run=a") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            data = next(line for line in answer.iter_lines() if line.startswith("data: "))
            assert [run["id"] for run in json.loads(data[6:])["runs"]] == ["a"]


def test_what_the_command_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "20261121-035133-5f0c2a"
    state = {"XDG_STATE_HOME": str(tmp_path)}
    made_run(tmp_path / "ronde" / "runs" / name, steps=3)
    assert root_of_runs(None, state) == tmp_path / "ronde" / "runs"
    assert root_of_runs(Path(name), state) == tmp_path / "ronde" / "runs" / name
    assert root_of_runs(Path("runs/a"), state) == Path.cwd() / "runs/a"


def test_an_address_that_cannot_be_had_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as ended:
            main(["ui", str(tmp_path), "--port", str(port)])
    assert ended.value.code == 1
    assert f"cannot listen at 127.0.0.1, port {port}" in capsys.readouterr().err
