"""Ports that the script opens: this process is a rank, and a plain socket is the main rank's server."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import socket
import threading
from _socket import socket as Plain  # which no patch of ours knows
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Client, Listener
from multiprocessing.managers import BaseManager
from typing import Any
from urllib.request import urlopen

import pytest

from ronde.boundary.circumstances.ports import Ports
from ronde.boundary.patches import Patches

HOST = "127.0.0.1"


class Machine:
    """The main rank listens at a port; this process may be another rank of its host, or the main one."""

    def __init__(self) -> None:
        self.server = socket.socket()
        self.server.bind((HOST, 0))
        self.server.listen()
        self.port: int = self.server.getsockname()[1]
        # What a socket knows by itself, whatever stands in the way of a script.
        self.true_name: Callable[[Any], tuple[str, int]] = socket.socket.getsockname

    @contextmanager
    def rank(self, *, first: bool = False) -> Iterator[Ports]:
        patches, ports = Patches(), Ports(first=first)
        ports.install(patches)
        try:
            yield ports
        finally:
            patches.restore()

    def is_reached(self, connect: Callable[[], object]) -> bool:
        """Whether the main rank's server is who answers to this."""
        self.server.setblocking(False)
        connect()
        with suppress(BlockingIOError):
            self.server.accept()[0].close()
            return True
        return False


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    with machine.server:
        yield machine


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"own")

    def log_message(self, *_: Any) -> None:
        pass


def test_a_server_of_another_rank(machine: Machine) -> None:
    """It starts, says the port that it was asked for, and is reached there by its own rank."""
    with machine.rank(), HTTPServer((HOST, machine.port), Answer) as server:
        assert server.server_address == (HOST, machine.port)
        assert machine.true_name(server.socket)[1] != machine.port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            for host in (HOST, "localhost"):
                with urlopen(f"http://{host}:{machine.port}", timeout=20) as answer:
                    assert answer.read() == b"own"
        finally:
            server.shutdown()
            thread.join()
    # The patches are gone: this is no rank any more.
    assert machine.is_reached(lambda: socket.create_connection((HOST, machine.port)).close())


def test_names_of_both_ends(machine: Machine) -> None:
    with machine.rank(), socket.create_server((HOST, machine.port)) as server:
        with socket.create_connection((HOST, machine.port)) as client:
            assert client.getpeername() == (HOST, machine.port)
            with server.accept()[0] as accepted:
                assert accepted.getsockname() == (HOST, machine.port)
                assert accepted.getpeername() == client.getsockname()
        with socket.socket() as another:
            assert another.connect_ex((HOST, machine.port)) == 0
        server.close()
        with socket.socket() as late:  # the main rank's is there for longer, and not meant
            assert late.connect_ex((HOST, machine.port)) == errno.ECONNREFUSED


def test_ports_that_the_system_gives_are_left_alone(machine: Machine) -> None:
    """How scripts find a free port, which they may go on to tell a program that knows nothing of ranks."""
    with machine.rank() as ports:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = probe.getsockname()[1]
            assert machine.true_name(probe) == (HOST, port)
        with socket.create_server((HOST, port)) as server:
            assert machine.true_name(server) == (HOST, port)
        assert ports.notes() == []


def test_a_port_is_open_once_in_a_rank_too(machine: Machine) -> None:
    with machine.rank():
        with socket.create_server((HOST, machine.port)), pytest.raises(OSError, match="in use"):
            socket.create_server((HOST, machine.port))
        with socket.create_server((HOST, machine.port)) as again:
            assert again.getsockname() == (HOST, machine.port)


def test_a_port_that_a_stranger_got_meanwhile(machine: Machine) -> None:
    with machine.rank():
        with socket.create_server((HOST, machine.port)) as server:
            real = machine.true_name(server)[1]
        stranger = Plain()
        stranger.bind((HOST, real))
        stranger.listen()
        with socket.create_server((HOST, machine.port)) as server:
            assert machine.true_name(server)[1] not in (real, machine.port)
            assert server.getsockname() == (HOST, machine.port)
        stranger.close()


def test_a_port_that_was_tried_and_closed(machine: Machine) -> None:
    """It is nobody's on this rank: who connects means what is there for all."""
    with machine.rank():
        with socket.socket() as probe:
            probe.bind((HOST, machine.port))
        assert machine.is_reached(lambda: socket.create_connection((HOST, machine.port)).close())


def test_other_hosts_are_reached_by_the_port_that_they_have(machine: Machine) -> None:
    with machine.rank() as ports, socket.create_server((HOST, machine.port)) as server:
        real = machine.true_name(server)[1]
        assert ports._own(server, ("localhost", machine.port)) == ("localhost", real)
        assert ports._own(server, ("192.0.2.1", machine.port)) == ("192.0.2.1", machine.port)
        assert ports._own(server, (HOST, machine.port + 1)) == (HOST, machine.port + 1)


def test_mistakes_are_pythons_own(machine: Machine) -> None:
    with machine.rank(), socket.socket() as mistaken:
        for address in ((HOST,), (HOST, "9100"), (HOST, 70_000), 9100, (HOST, -1)):
            with pytest.raises((TypeError, OverflowError)):
                mistaken.bind(address)
        with pytest.raises(OSError, match="Cannot assign requested address"):
            mistaken.bind(("192.0.2.1", machine.port))


def test_datagrams(machine: Machine) -> None:
    own = {"type": socket.SOCK_DGRAM}
    with machine.rank(), socket.socket(**own) as server, socket.socket(**own) as client:
        server.settimeout(20)
        server.bind((HOST, machine.port))
        client.sendto(b"one", (HOST, machine.port))
        client.sendto(b"two", 0, (HOST, machine.port))
        client.connect((HOST, machine.port))
        client.send(b"three")
        assert [server.recv(9) for _ in range(3)] == [b"one", b"two", b"three"]
        assert server.getsockname() == (HOST, machine.port)
        assert machine.true_name(server)[1] != machine.port
        with socket.socket(**own) as other:
            other.sendmsg([b"fo", b"ur"], [], 0, (HOST, machine.port))
            assert server.recv(9) == b"four"
            server.sendto(b"five", other.getsockname())
            assert other.recvfrom(9) == (b"five", (HOST, machine.port))


def test_a_server_of_asyncio_on_both_families(machine: Machine) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(4))
        writer.close()

    async def serve() -> tuple[set[int], bytes]:
        server = await asyncio.start_server(answer, None, machine.port)
        async with server:
            reader, writer = await asyncio.open_connection("localhost", machine.port)
            writer.write(b"ping")
            got = await reader.read()
            writer.close()
            return {each.getsockname()[1] for each in server.sockets}, got

    with machine.rank():
        assert asyncio.run(serve()) == ({machine.port}, b"ping")


def test_a_listener_with_a_client(machine: Machine) -> None:
    with machine.rank(), Listener((HOST, machine.port)) as listener:
        with Client(listener.address) as client, listener.accept() as accepted:
            client.send("own")
            assert accepted.recv() == "own"
        assert listener.address == (HOST, machine.port)


class Manager(BaseManager):
    pass


Manager.register("numbers", callable=lambda: [1, 2, 3])


def test_a_manager_in_a_forked_process(machine: Machine) -> None:
    """The child binds, the parent connects: both mean this rank's server."""
    manager = Manager((HOST, machine.port), b"key", ctx=multiprocessing.get_context("fork"))
    with machine.rank() as ports, manager:
        assert manager.address == (HOST, machine.port)
        assert manager.numbers().copy() == [1, 2, 3]  # pyright: ignore[reportAttributeAccessIssue]
        assert ports._table.real(socket.SOCK_STREAM, machine.port) not in (0, machine.port)


def test_the_main_rank_opens_what_it_is_told(machine: Machine) -> None:
    with machine.rank(first=True) as ports:
        with pytest.raises(OSError, match="in use"):  # another program's, then
            socket.create_server((HOST, machine.port))
        assert ports.notes() == []
        machine.server.close()
        with socket.socket() as probe:
            probe.bind((HOST, machine.port))
        assert ports.notes() == []
        with socket.create_server((HOST, machine.port)) as server:
            assert machine.true_name(server) == (HOST, machine.port)
        told = "the main rank's: every other rank opens a free one instead, which is not reached from outside"
        assert ports.notes() == [f"port {machine.port} is {told}"]
        for port in (1, 2, 3, 4):
            ports._table.serve(socket.SOCK_STREAM, port)
        assert ports.notes() == [f"ports 1, 2, 3 and 2 more are {told}"]
