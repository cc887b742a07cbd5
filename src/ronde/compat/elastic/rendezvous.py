"""Agreement between the driver and ranks on members, through keys in a store.

    now          newest generation, and newest sealed generation
    over         whether the job has ended
    world/G      members of generation G
    here/U       number of ranks of unit U that have called `init` for the first time
    in/G         number of ranks that have joined generation G
    met/G        number of ranks of G that have connected after it was sealed
    out/G        number of ranks that have left generation G

A rank joins the newest generation, and moves on to newer ones until the driver seals the one that it is in:
then all members have joined, and connect. So no rank waits for one of an older generation.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from ronde.comm.rendezvous import connect_store
from ronde.compat.elastic.world import World
from ronde.compat.place import JobPlace
from ronde.errors import LaunchError

__all__ = ["JobRendezvous", "LeftOut"]

_POLL_S = 0.05


class LeftOut(Exception):
    """Raised when the job continues without this rank, or has ended."""


class JobRendezvous:
    """The store of an elastic job, as ranks and the driver use it.

    Args:
        store: a `torch.distributed.Store`.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    @classmethod
    def connect(cls, address: str, within: float) -> JobRendezvous:
        """Connect to the driver's store, on a rank.

        Raises:
            LaunchError: the driver is not reached within `within` seconds.
        """
        try:
            return cls(connect_store(address, 1, timedelta(seconds=within)))
        except RuntimeError as error:
            raise LaunchError(f"the launcher's store at {address} is not reached: {error} [R706]") from None

    # Methods of ranks.

    def newest(self) -> int:
        """Return the newest generation."""
        return self._now()[0]

    def come(self, place: JobPlace, within: float) -> JobPlace:
        """Join a generation newer than `place.generation`; return this rank's place in it.

        A rank's first call waits without a limit, as the driver ends the rank.

        Raises:
            LeftOut: the job continues without this rank.
            LaunchError: no newer generation appeared within `within` seconds.
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
                    f"no other ranks have joined within {within:g} s; see what the launcher says, or raise "
                    "--elastic-timeout [R706]"
                )
            time.sleep(_POLL_S)

    def meet(self, generation: int) -> None:
        """Report that this rank is connected with the others of a generation."""
        self._store.add(f"met/{generation}", 1)

    # Methods of the driver.

    def open(self) -> None:
        """Initialize the store, before any rank starts."""
        self._store.set("now", "0,0")

    def publish(self, world: World, sealed: int) -> None:
        """Publish a new generation for ranks to join.

        Args:
            sealed: the newest sealed generation.
        """
        self._store.set(f"world/{world.generation}", world.to_json())
        self._store.set("now", f"{world.generation},{sealed}")

    def seal(self, generation: int) -> None:
        """Seal the newest generation: all its ranks have joined."""
        self._store.set("now", f"{generation},{generation}")

    def arrived(self, unit: int) -> int:
        """Return the number of ranks of a unit that have called `init`."""
        return self._store.add(f"here/{unit}", 0)

    def inside(self, generation: int) -> int:
        """Return the number of ranks that have joined a generation."""
        return self._store.add(f"in/{generation}", 0)

    def have_met(self, generation: int) -> int:
        """Return the number of ranks of a generation that are connected."""
        return self._store.add(f"met/{generation}", 0)

    def end(self) -> None:
        """Mark the job as ended, so that waiting ranks leave."""
        self._store.add("over", 1)

    def left(self, generation: int) -> int:
        """Return the number of ranks of a generation that wait for another."""
        return self._store.add(f"out/{generation}", 0)

    def _now(self) -> tuple[int, int]:
        newest, _, sealed = self._store.get("now").decode().partition(",")
        return int(newest), int(sealed)

    def _world(self, generation: int) -> World:
        return World.from_json(self._store.get(f"world/{generation}"))
