"""What Linux shows of the connections of ranks, from tables as the kernel prints them."""

from __future__ import annotations

import os
from pathlib import Path

from ronde.trace.connections import compared, look

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(peer: str, queued: int, repeated: int, inode: int, state: str = "01") -> str:
    return (
        f"   0: 0100C70A:A2C4 {peer}:C350 {state} {queued:08X}:00000000 01:00000099 {repeated:08X}"
        f"     0        0 {inode} 2 0000000000000000 20 4 30 10 -1\n"
    )


def proc(path: Path, tcp: str, tcp6: str = HEAD, sent: int = 0) -> Path:
    """Process 7 with the sockets 1 to 4, on a host whose card has sent so many bytes."""
    net = path / "7" / "net"
    net.mkdir(parents=True, exist_ok=True)
    (net / "tcp").write_text(tcp)
    (net / "tcp6").write_text(tcp6)
    dev = f"head\nhead\n    lo: 9 9 0 0 0 0 0 0 9 9\n  eth0: 500 5 0 0 0 0 0 0 {sent} 7 0 0 0 0 0 0\n"
    (net / "dev").write_text(dev)
    folder = path / "7" / "fd"
    folder.mkdir(exist_ok=True)
    for number in range(1, 5):
        if not (folder / str(number)).is_symlink():
            os.symlink(f"socket:[{number}]", folder / str(number))
    return path


def test_connections_of_two_looks_are_summed_by_peer(tmp_path: Path) -> None:
    loopback, of_others = row("0100007F", 9, 9, 3), row("0300C70A", 9, 9, 99)
    mapped = row("0000000000000000FFFF00000200C70A", 70, 0, 4)
    before = look([7], proc(tmp_path, HEAD + row("0200C70A", 200, 3, 1) + loopback, HEAD + mapped))
    rows = row("0200C70A", 100, 4, 1) + row("0200C70A", 50, 0, 2) + loopback + of_others
    after = look([7], proc(tmp_path, HEAD + rows, HEAD + mapped, sent=1234))
    (found,) = compared(before, after)
    # The second connection is new, so nothing has waited in it.
    assert (found.peer, found.queued, found.repeated) == ("10.199.0.2", 100 + 70, 4)
    assert after.sent - before.sent == 1234


def test_a_connection_that_is_closed_does_not_count(tmp_path: Path) -> None:
    closing = look([7], proc(tmp_path, HEAD + row("0200C70A", 200, 3, 1, state="04")))
    assert compared(closing, closing) == []


def test_processes_that_are_gone(tmp_path: Path) -> None:
    assert look([12], tmp_path).connections == {}
    assert look([], tmp_path).connections == {}
