"""Hosts that are this one, and do not see some folders of each other: each has a disk of its own there."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

__all__ = ["command_apart"]

# As ssh does, it hands its second argument to a shell.
_APART = 'for place in {places}; do mkdir -p "$place"; mount -t tmpfs none "$place"; done; eval "$0"'
_TOGETHER = 'eval "$1"'


def command_apart(places: Sequence[Path]) -> str:
    """What takes the place of ssh, for `--ssh-command`; of a user who may not mount, hosts see each other."""
    if os.geteuid() != 0:
        return shlex.join(("sh", "-c", _TOGETHER))
    inner = _APART.format(places=shlex.join(map(str, places)))
    return shlex.join(("sh", "-c", f'exec unshare --mount sh -c {shlex.quote(inner)} "$1"'))
