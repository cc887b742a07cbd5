"""A null file against a real one: the same calls, the same answers, but no bytes."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ronde.files.raw_files import NullFile, Sink, layered


def pair(
    folder: Path, mode: str, buffering: int = -1, text: dict[str, Any] | None = None
) -> tuple[Any, Any, list[str]]:
    """A real file from `open`, a null file of the same kind, and what the null file told of its end."""
    path = folder / "file"
    if "a" in mode:
        path.write_bytes(b"12345")
        (folder / "null").write_bytes(b"12345")
    told: list[str] = []
    raw = NullFile(folder / "null", mode.replace("b", ""))
    raw.name = str(path)  # pyright: ignore[reportAttributeAccessIssue]
    raw.on_close = lambda: told.append("closed")
    options = {"encoding": None, "errors": None, "newline": None, **(text or {})}
    null = layered(raw, mode, buffering, **options)
    return open(path, mode, buffering, **(text or {})), null, told


def alike(real: Any, null: Any, call: Callable[[Any], Any]) -> None:
    answers = []
    for file in (real, null):
        try:
            answers.append(call(file))
        except Exception as failure:
            answers.append((type(failure), str(failure)))
    assert answers[1] == answers[0]


TEXT_CALLS: list[Callable[[Any], Any]] = [
    lambda file: file.name,
    lambda file: file.mode,
    lambda file: file.encoding,
    lambda file: file.line_buffering,
    lambda file: (file.readable(), file.writable(), file.seekable(), file.isatty(), file.closed),
    lambda file: file.write("größe\nx"),
    lambda file: file.tell(),
    lambda file: file.flush(),
    lambda file: file.tell(),
    lambda file: file.seek(0),
    lambda file: file.write("y"),
    lambda file: file.seek(0, io.SEEK_END),
    lambda file: file.writelines(["a\n", "b\n"]),
    lambda file: file.tell(),
    lambda file: file.truncate(3),
    lambda file: file.seek(0, io.SEEK_END),
    lambda file: file.seek(-1),
    lambda file: file.read(),
    lambda file: file.write(b"bytes"),
    lambda file: print("printed", file=file),
    lambda file: file.tell(),
    lambda file: file.close(),
    lambda file: file.close(),
    lambda file: file.closed,
    lambda file: file.write("after"),
    lambda file: file.tell(),
]


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize(
    "text",
    [
        {"encoding": "utf-8"},
        {"encoding": "utf-16"},
        {"encoding": "utf-8", "newline": "\r\n"},
        {"encoding": "ascii"},
    ],
)
def test_text(tmp_path: Path, mode: str, text: dict[str, Any]) -> None:
    real, null, _ = pair(tmp_path, mode, text=text)
    for call in TEXT_CALLS:
        alike(real, null, call)


BINARY_CALLS: list[Callable[[Any], Any]] = [
    lambda file: (file.name, file.mode, file.closed),
    lambda file: file.write(b"0123456789" * 2000),
    lambda file: file.tell(),
    lambda file: file.write(memoryview(bytearray(8)).cast("i")),
    lambda file: file.seek(100),
    lambda file: file.write(b"x"),
    lambda file: file.tell(),
    lambda file: file.seek(-10, io.SEEK_END),
    lambda file: file.seek(5, io.SEEK_CUR),
    lambda file: file.truncate(),
    lambda file: file.truncate(50),
    lambda file: file.tell(),
    lambda file: file.seek(0, io.SEEK_END),
    lambda file: file.seek(1000),
    lambda file: file.write(b""),
    lambda file: file.seek(0, io.SEEK_END),
    lambda file: file.seek(-9999, io.SEEK_CUR),
    lambda file: file.seek(0, 9),
    lambda file: file.read(1),
    lambda file: file.write("text"),
    lambda file: os.fsync(file.fileno()),
    lambda file: os.fstat(file.fileno()).st_size,
    lambda file: file.close(),
    lambda file: file.fileno(),
    lambda file: file.seekable(),
]


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_binary(tmp_path: Path, mode: str) -> None:
    real, null, _ = pair(tmp_path, mode)
    for call in BINARY_CALLS:
        alike(real, null, call)


def test_exclusive(tmp_path: Path) -> None:
    real, null, _ = pair(tmp_path, "xb")
    alike(real, null, lambda file: (file.mode, file.tell()))
    real.close()
    null.close()


def test_unbuffered(tmp_path: Path) -> None:
    real, null, _ = pair(tmp_path, "wb", buffering=0)
    for call in (
        lambda f: f.write(b"ab"),
        lambda f: f.tell(),
        lambda f: f.name,
        lambda f: f.mode,
        lambda f: f.close(),
    ):
        alike(real, null, call)


def test_tells_of_its_end_once(tmp_path: Path) -> None:
    real, null, told = pair(tmp_path, "w", text={"encoding": "utf-8"})
    real.close()
    null.write("text")
    null.flush()
    assert told == []
    null.close()
    null.close()
    assert told == ["closed"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_closed_by_its_last_reference(tmp_path: Path) -> None:
    real, null, told = pair(tmp_path, "w", text={"encoding": "utf-8"})
    real.close()
    null.write("text")
    del null
    assert told == ["closed"]


def test_code_below_python_moves_the_position(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    real, null, _ = pair(tmp_path, "wb")
    for call in (
        lambda f: np.save(f, np.arange(100)),
        lambda f: f.tell(),
        lambda f: f.seek(0, 2),
        lambda f: f.close(),
    ):
        alike(real, null, call)


def test_sink_counts_bytes() -> None:
    sink = Sink()
    assert sink.write(memoryview(bytearray(8)).cast("i")) == 8
    with pytest.raises(io.UnsupportedOperation):
        sink.fileno()
