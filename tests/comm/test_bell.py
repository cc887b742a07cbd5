"""A rank that sleeps is woken by a peer that has come further."""

from __future__ import annotations

import mmap
import threading

from ronde.comm.bell import Bell


def bells() -> tuple[Bell, Bell]:
    maps = [mmap.mmap(-1, mmap.PAGESIZE) for _ in range(2)]
    return Bell(0, maps, 1024), Bell(1, maps, 1024)


def test_a_stroke_wakes_who_sleeps() -> None:
    first, second = bells()
    sleeper = threading.Thread(target=second.sleep, args=(lambda: False, 600_000), daemon=True)
    sleeper.start()
    for _ in range(6000):  # rings before it sleeps go unheard
        first.ring()
        sleeper.join(0.01)
        if not sleeper.is_alive():
            return
    raise AssertionError("it sleeps on")


def test_nobody_sleeps_for_what_has_come() -> None:
    _, second = bells()
    second.sleep(lambda: True, 600_000)


def test_what_comes_between_the_look_and_the_sleep_is_heard() -> None:
    first, second = bells()

    def look() -> bool:
        first.ring()  # the peer counts up just after this look
        return False

    second.sleep(look, 600_000)


def test_a_sleep_ends_by_itself() -> None:
    _, second = bells()
    looks: list[None] = []

    def look() -> bool:
        looks.append(None)
        return False

    second.sleep(look, 1)
    assert len(looks) == 1
