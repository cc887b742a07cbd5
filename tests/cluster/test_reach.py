"""By which address others reach this host."""

from __future__ import annotations

import ipaddress
import socket

from ronde.cluster.reach import Greeter, candidates, dial, free_ports, is_this_host, listen_everywhere


def test_a_host_is_known_by_what_it_says() -> None:
    """Whatever else listens at an address of the list, the launcher is the one that says the word."""
    with listen_everywhere() as listener:
        port = listener.getsockname()[1]
        greeter = Greeter(listener, "a word")
        try:
            assert dial(["127.0.0.1"], port, "a word") == {"127.0.0.1": "127.0.0.1"}
            assert dial(["127.0.0.1"], port, "b word") == {}
        finally:
            greeter.stop()
    assert dial(["127.0.0.1"], port, "a word") == {}


def test_loopback_is_the_last_to_be_tried() -> None:
    assert candidates([]) == ("127.0.0.1",)
    *others, last = candidates(["localhost"])
    assert last == "127.0.0.1"
    assert not any(ipaddress.ip_address(each).is_loopback for each in others)


def test_this_host() -> None:
    assert is_this_host("localhost")
    assert is_this_host("somebody@127.0.0.1")
    assert is_this_host(socket.gethostname())
    assert not is_this_host("192.0.2.1")
    assert not is_this_host("no-such-host.invalid")


def test_ports_are_different() -> None:
    assert len(set(free_ports(3))) == 3
