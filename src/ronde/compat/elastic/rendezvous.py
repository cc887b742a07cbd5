"""How ranks of an elastic job and its driver agree on who is there: words in a store.

    now          the newest generation, and the newest one that is sealed
    over         whether the job has come to its end
    world/G      who is in generation G
    here/U       how many ranks of unit U have come to `init` for the first time
    in/G         how many ranks have come to `init` for generation G
    met/G        how many ranks of generation G have met after it was sealed
    out/G        how many ranks have left generation G

A rank that comes joins the newest generation, and moves to a newer one until the driver has sealed that in
which it is: then all its members have come, and meet. So nobody waits for a rank of an older generation.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from ronde.comm.joining import connect_store
from ronde.compat.elastic.world import World
from ronde.compat.place import JobPlace
from ronde.errors import LaunchError

__all__ = ["LeftOut", "Rendezvous"]

_POLL_S = 0.05


class LeftOut(Exception):
    """The job goes on without this rank, or has come to its end."""


class Rendezvous:
    """The store, as ranks and the driver use it.

    Args:
        store: a `torch.distributed.Store`.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    @classmethod
    def connect(cls, address: str, within: float) -> Rendezvous:
        """A rank's.

        Raises:
            LaunchError: the driver is not reached within `within` seconds.
        """
        try:
            return cls(connect_store(address, 1, timedelta(seconds=within)))
        except RuntimeError as error:
            raise LaunchError(f"the launcher's store at {address} is not reached: {error}") from None

    # A rank's.

    def newest(self) -> int:
        """The newest generation."""
        return self._now()[0]

    def come(self, place: JobPlace, within: float) -> JobPlace:
        """Wait until the ranks of a generation newer than `place.generation` are there; this rank's place.

        A rank that comes for the first time waits without a limit: the driver ends it.

        Raises:
            LeftOut: the job goes on without this rank.
            LaunchError: after `within` seconds there is none.
        """
        before, joined = place.generation, place.generation
        self._store.add(f"out/{before}" if before else f"here/{place.unit}", 1)
        until = time.monotonic() + within
        found: JobPlace | None = None
        while True:
            newest, sealed = self._now()
            if found is not None and sealed == joined:
                return found
            if self._store.add("over", 0):
                raise LeftOut
            if newest > joined:
                joined = newest
                world = self._world(joined)
                found = world.place_of(place)
                if found is not None:
                    self._store.add(f"in/{joined}", 1)
                elif before or place.unit in world.units:
                    raise LeftOut
            elif before and time.monotonic() > until:
                raise LaunchError(
                    f"no other ranks have come for {within:g} s; see what the launcher says, or raise "
                    "--elastic-timeout"
                )
            time.sleep(_POLL_S)

    def meet(self, generation: int) -> None:
        """This rank has met the others of a generation."""
        self._store.add(f"met/{generation}", 1)

    # The driver's.

    def open(self) -> None:
        """Before any rank is started."""
        self._store.set("now", "0,0")

    def publish(self, world: World, sealed: int) -> None:
        """Have ranks come together anew.

        Args:
            sealed: the newest generation that is sealed.
        """
        self._store.set(f"world/{world.generation}", world.to_json())
        self._store.set("now", f"{world.generation},{sealed}")

    def seal(self, generation: int) -> None:
        """All ranks of the newest generation have come."""
        self._store.set("now", f"{generation},{generation}")

    def arrived(self, unit: int) -> int:
        """How many ranks of a unit have come to `init`."""
        return self._store.add(f"here/{unit}", 0)

    def inside(self, generation: int) -> int:
        """How many ranks have come for this generation."""
        return self._store.add(f"in/{generation}", 0)

    def have_met(self, generation: int) -> int:
        """How many ranks of this generation have met the others."""
        return self._store.add(f"met/{generation}", 0)

    def end(self) -> None:
        """The job has come to its end: ranks that wait for others are to leave."""
        self._store.add("over", 1)

    def left(self, generation: int) -> int:
        """How many ranks of this generation wait for another."""
        return self._store.add(f"out/{generation}", 0)

    def _now(self) -> tuple[int, int]:
        newest, _, sealed = self._store.get("now").decode().partition(",")
        return int(newest), int(sealed)

    def _world(self, generation: int) -> World:
        return World.from_json(self._store.get(f"world/{generation}"))
