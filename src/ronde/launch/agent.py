"""One host's side of a run on several hosts: `python -m ronde.launch.agent`, started by ssh or srun.

It exchanges frames with its launcher over stdin and stdout, starts the host's ranks, passes on rank 0's
output, reports deaths and errors, and ends the ranks when the launcher asks for it or is gone: the end of
stdin ends the run on this host, so no process remains on a host that has lost its connection.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import importlib
import itertools
import os
import platform
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ronde.cluster.cores import available_cores
from ronde.cluster.devices import cuda_devices, torch_has_cuda
from ronde.cluster.reach import Greeter, dial, free_ports, listen_everywhere
from ronde.cluster.torch_install import torch_version
from ronde.errors import RondeError
from ronde.launch.checkpoint_transfer import sees_mark, take_brought
from ronde.launch.clock import read_clocks
from ronde.launch.frames import MAGIC, FrameError, FrameKind, Sender, frames, unpack
from ronde.launch.mirror import FileChunk
from ronde.launch.node_spec import NodeSpec
from ronde.launch.piped_node import PipedNode
from ronde.trace.run_directory import RunDirectory, default_root
from ronde.trace.server_states import server_states

__all__ = ["Answers", "main"]

# : Answers to further questions before a run: the kind of the answer, and the function that makes it.
Answers = Mapping[FrameKind, tuple[FrameKind, Callable[[dict[str, Any]], dict[str, Any]]]]

#: Seconds between two signs of life, in both directions.
BEAT_S = 1.0
# : Seconds without a message from the launcher, after which its connection counts as lost.
SILENCE_S = 60.0


def main(more: Answers = MappingProxyType({})) -> None:
    """Serve one launcher, and end when it does.

    Args:
        more: questions that are answered besides those of a launcher.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # output of a library must not end up between frames
    os.close(nothing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's keys reach the launcher
    sender = Sender(outgoing)
    with contextlib.suppress(OSError, FrameError):
        os.write(outgoing, MAGIC)
        part = _meet(frames(incoming), sender, more)
        if part is not None:
            # Ranks must not find Ctrl-C ignored, nor the pipes to the launcher.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _run(part, incoming, sender)


def _meet(incoming: Iterator[tuple[FrameKind, bytes]], sender: Sender, more: Answers) -> NodeSpec | None:
    """Answer questions about this host; return its part of the run, or None."""
    with contextlib.ExitStack() as greeting:  # before ranks are started there must be no thread
        return _answer(incoming, sender, more, greeting)


def _answer(
    incoming: Iterator[tuple[FrameKind, bytes]], sender: Sender, more: Answers, greeting: contextlib.ExitStack
) -> NodeSpec | None:
    for kind, content in incoming:
        if kind is FrameKind.HELLO:
            hello = unpack(content)
            os.environ.update(hello["environment"])
            sender.send(
                FrameKind.READY, {**about_this_host(**hello["about"]), **_seen(**hello.get("sees", {}))}
            )
        elif kind is FrameKind.CLOCK:
            sender.send(FrameKind.CLOCK, read_clocks(unpack(content)))
        elif kind is FrameKind.BRING:
            sender.send(FrameKind.BROUGHT, {"problem": _take_brought(unpack(content), incoming)})
        elif kind is FrameKind.DIAL:
            wanted = unpack(content)
            reached = dial(wanted["addresses"], wanted["port"], wanted["word"])
            listener = greeting.enter_context(listen_everywhere())
            greeting.callback(Greeter(listener, wanted["word"]).stop)
            ports = {"ports": free_ports(wanted["ports"]), "mesh": listener.getsockname()[1]}
            sender.send(FrameKind.DIALED, {"reached": reached, **ports})
        elif kind is FrameKind.MESH:
            mesh = unpack(content)
            others = {name: dial([address], port, mesh["word"]) for name, address, port in mesh["hosts"]}
            sender.send(FrameKind.MESHED, {"failed": [name for name, found in others.items() if not found]})
        elif kind is FrameKind.START:
            return NodeSpec.from_fields(unpack(content))
        elif kind in more:
            wanted, answer = more[kind]
            sender.send(wanted, answer(unpack(content)))
        else:
            return None
    return None


def _seen(mark: str = "", server_state: str = "") -> dict[str, Any]:
    """Look for the launcher's folders on this host, to see whether it shares them.

    Args:
        mark: a file in the folder of checkpoints; "" without checkpoints.
        server_state: directory of an earlier run with servers; "" for none.
    """
    states = list(server_states(Path(server_state))) if server_state else []
    return {"sees_checkpoints": sees_mark(mark), "server_states": states}


def _take_brought(place: dict[str, Any], incoming: Iterator[tuple[FrameKind, bytes]]) -> str:
    """Receive checkpoints into this host's run directory; return an error or ""."""
    chosen = Path(place["run_dir"]) if place["run_dir"] else None
    pieces = (
        FileChunk.from_bytes(content)
        for _, content in itertools.takewhile(lambda frame: frame[0] is FrameKind.SAVED, incoming)
    )
    try:
        directory = RunDirectory.of_host(chosen, place["run_id"], place["host"], os.environ)
        directory.release()  # it is opened again for the ranks
        return take_brought(directory.path, pieces)
    except RondeError as error:
        collections.deque(pieces, maxlen=0)
        return str(error)


def about_this_host(script: str, cwd: str, run_dir: str = "") -> dict[str, Any]:
    """Describe this host: versions, files and devices, which must match other hosts'.

    Args:
        script: its path; "" for a module.
        cwd: the launcher's working directory.
        run_dir: the directory of this host's part of the run; "": where runs are kept.
    """
    found = ""
    if script:
        with contextlib.suppress(OSError):
            found = hashlib.sha256(Path(cwd, script).read_bytes()).hexdigest()
    machine = Path("/proc/sys/kernel/random/boot_id")
    space = os.stat("/proc/self/ns/net").st_ino if Path("/proc/self/ns/net").exists() else 0
    return {
        "python": platform.python_version(),
        # It imports all rooms for their types, so a normal import here would break the order of rooms.
        "ronde": importlib.import_module("ronde").__version__,
        "torch": torch_version(),
        "script": found,
        "devices": list(cuda_devices(os.environ)) if torch_has_cuda() else [],
        "cores": available_cores(),
        "disk": _free(Path(run_dir) if run_dir else default_root(os.environ)),
        "name": socket.gethostname(),
        "machine": f"{machine.read_text().strip() if machine.exists() else socket.gethostname()} {space}",
    }


def _free(path: Path) -> int:
    """Return the free bytes of a folder, or -1 where they are not known."""
    with contextlib.suppress(OSError):
        there = next(each for each in (path, *path.parents) if each.exists())
        return shutil.disk_usage(there).free
    return -1


def _run(part: NodeSpec, incoming: int, sender: Sender) -> None:
    """Run the host's part from its start to its last message."""
    unread: set[bytes] = set()
    relays = _relay_output(sender, unread, one_stream=part.one_stream)
    try:
        ranks = PipedNode(part, sender)
        ranks.start()
    except (RondeError, OSError) as error:
        sender.send(FrameKind.LAST, {"refused": str(error)})
        return
    # From here on there are threads, in which signals are blocked because they are blocked here.
    listener = threading.Thread(
        target=_listen, args=(incoming, sender, ranks, unread), name="ronde listen", daemon=True
    )
    heart = threading.Thread(target=_beat, args=(sender, ranks), name="ronde beat", daemon=True)
    carrier = threading.Thread(target=_carry, args=(ranks, unread), name="ronde large files", daemon=True)
    for thread in (*relays, listener, heart, *([carrier] if part.makes_large_files else [])):
        thread.start()
    last = ranks.watch()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)  # ends the relays, when they have passed on everything
    for thread in relays:
        while thread.is_alive() and not ranks.is_lost:
            thread.join(0.05)
    if not ranks.is_lost:
        with contextlib.suppress(OSError):
            ranks.send_files(last=True)
            ranks.send_large_files(unread)
            sender.send(FrameKind.LAST, last)
            ranks.remove_sent(unread)
    os._exit(0)  # a thread may hang on a dead connection


def _relay_output(sender: Sender, unread: set[bytes], *, one_stream: bool) -> list[threading.Thread]:
    """Send stdout and stderr to the user by frames; returns the threads.

    `unread`: kinds of frames that the launcher no longer reads.
    """
    made: list[threading.Thread] = []
    theirs = -1
    for descriptor, kind in ((1, FrameKind.OUT), (2, FrameKind.ERR)):
        if theirs < 0 or not one_stream:
            ours, theirs = os.pipe()
            given = (ours, kind, sender, unread)
            made.append(threading.Thread(target=_relay, args=given, name="ronde relay", daemon=True))
        os.dup2(theirs, descriptor)
        if not one_stream or descriptor == 2:
            os.close(theirs)
    return made


def _relay(source: int, kind: FrameKind, sender: Sender, unread: set[bytes]) -> None:
    with contextlib.suppress(OSError):
        while (data := os.read(source, 65536)) and kind not in unread:
            sender.send(kind, data)
    os.close(source)  # if the launcher no longer reads, rank 0 gets the broken pipe itself


def _listen(incoming: int, sender: Sender, ranks: PipedNode, unread: set[bytes]) -> None:
    """Carry out the launcher's frames until it is gone or silent too long."""
    heard = [time.monotonic()]
    watchman = threading.Thread(target=_watch_silence, args=(heard, ranks), daemon=True)
    watchman.start()
    with contextlib.suppress(FrameError, OSError):
        for kind, content in frames(incoming):
            heard[0] = time.monotonic()
            if kind is FrameKind.CLOCK:
                sender.send(FrameKind.CLOCK, read_clocks(unpack(content)))
            elif kind is FrameKind.SIGNAL:
                ranks.signal(int(content))
            elif kind is FrameKind.END:
                ranks.end()
            elif kind is FrameKind.LOOK:
                ranks.look(content.decode())
            elif kind is FrameKind.RELEASE:
                ranks.release()
            elif kind is FrameKind.CLOSED:
                unread.add(content)
    ranks.lose()


def _watch_silence(heard: list[float], ranks: PipedNode) -> None:
    while time.monotonic() - heard[0] < SILENCE_S:
        time.sleep(BEAT_S)
        if ranks.is_stopped:  # with the launcher, by Ctrl-Z
            heard[0] = time.monotonic()
    ranks.lose()


def _beat(sender: Sender, ranks: PipedNode) -> None:
    while True:
        time.sleep(BEAT_S)
        try:
            ranks.send_pulse()
            ranks.send_files()
        except OSError:
            ranks.lose()
            return


def _carry(ranks: PipedNode, unread: set[bytes]) -> None:
    """Send large files as rank 0 makes them, without delaying heartbeats."""
    with contextlib.suppress(OSError):
        while True:
            time.sleep(BEAT_S)
            ranks.send_large_files(unread)


if __name__ == "__main__":
    main()
