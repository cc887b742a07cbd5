"""A command in place of ssh, over the network of `ronde.testing.hosts`.

    python remote_shell.py serve                on a host
    ronde run --ssh-command "python remote_shell.py dial" -H one:1,two:1 train.py

A cut link is not noticed, as under an ssh without `ServerAliveInterval`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading

from ronde.launch.frames import FrameKind, Sender, frames

__all__ = ["PORT", "command", "dial", "serve"]

PORT = 2022
_PATIENCE_S = 5.0


def command() -> tuple[str, ...]:
    """The words that take ssh's place."""
    return (sys.executable, __file__, "dial")


def serve() -> None:
    """Run each line that comes, until this process is ended."""
    listener = socket.create_server(("", PORT), backlog=64)
    os.write(1, b"listens\n")
    while True:
        link, _ = listener.accept()
        threading.Thread(target=_run, args=(link,), daemon=True).start()


def dial(host: str, line: str) -> int:
    """Run a line on a host with this process's streams; return its code."""
    try:
        link = socket.create_connection((host, PORT), _PATIENCE_S)
    except OSError as error:
        os.write(2, f"{host}: {error.strerror or error}\n".encode())
        return 255
    link.settimeout(None)
    sender = Sender(link.fileno())
    sender.send(FrameKind.START, line)
    threading.Thread(target=_feed, args=(sender,), daemon=True).start()
    for kind, content in frames(link.fileno()):
        if kind is FrameKind.LAST:
            return int(content)
        os.write(1 if kind is FrameKind.OUT else 2, content)
    return 255


def _feed(sender: Sender) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, 65536):
            sender.send(FrameKind.OUT, data)
        sender.send(FrameKind.CLOSED)


def _run(link: socket.socket) -> None:
    """Serve one connection; its end ends the line's stdin, as under ssh."""
    sender, incoming = Sender(link.fileno()), frames(link.fileno())
    _, line = next(incoming)
    process = subprocess.Popen(
        ["sh", "-c", line],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    streams = ((process.stdout.fileno(), FrameKind.OUT), (process.stderr.fileno(), FrameKind.ERR))
    relays = [threading.Thread(target=_relay, args=(*each, sender), daemon=True) for each in streams]
    for relay in relays:
        relay.start()
    threading.Thread(target=_finish, args=(process, relays, sender, link), daemon=True).start()
    with contextlib.suppress(OSError):
        for kind, content in incoming:
            if kind is FrameKind.CLOSED:
                break
            os.write(process.stdin.fileno(), content)
    with contextlib.suppress(OSError):
        process.stdin.close()


def _relay(source: int, kind: FrameKind, sender: Sender) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(source, 65536):
            sender.send(kind, data)


def _finish(
    process: subprocess.Popen[bytes], relays: list[threading.Thread], sender: Sender, link: socket.socket
) -> None:
    code = process.wait()
    for relay in relays:
        relay.join(_PATIENCE_S)
    with contextlib.suppress(OSError):
        sender.send(FrameKind.LAST, str(code if code >= 0 else 128 - code))
        link.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    sys.exit(dial(*sys.argv[2:]))
