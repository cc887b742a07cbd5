"""One thread at a time runs the loop: its own, or one that waits for something that it does."""

from __future__ import annotations

import queue
import threading

from ronde.compat.shared_loop import SharedLoop


class Echo:
    """Says in which thread each event was dealt with; ends at "end"."""

    def __init__(self) -> None:
        self.events: queue.Queue[str] = queue.Queue()
        self.dealt: list[tuple[str, threading.Thread]] = []
        self.is_over = False
        self.loop = SharedLoop(self.step, lambda: self.is_over)
        self.thread = threading.Thread(target=self.loop.run, daemon=True)

    def step(self) -> None:
        event = self.events.get(timeout=30)
        self.dealt.append((event, threading.current_thread()))
        self.is_over = event == "end"


def test_its_own_thread_runs_it_where_nobody_waits() -> None:
    echo = Echo()
    echo.thread.start()
    for event in ("a", "b", "end"):
        echo.events.put(event)
    echo.thread.join(timeout=30)
    assert echo.dealt == [(event, echo.thread) for event in ("a", "b", "end")]


def test_who_waits_runs_it_until_what_it_waits_for_is_done() -> None:
    echo = Echo()
    for event in ("a", "b", "end"):
        echo.events.put(event)
    echo.loop.help(lambda: len(echo.dealt) == 2)
    assert echo.dealt == [(event, threading.current_thread()) for event in ("a", "b")]
    echo.thread.start()
    echo.thread.join(timeout=30)
    assert echo.dealt[2] == ("end", echo.thread)


def test_who_waits_leaves_it_to_a_thread_that_has_its_turn() -> None:
    echo = Echo()
    with echo.loop.turn:
        helper = threading.Thread(target=echo.loop.help, args=(lambda: False,))
        helper.start()
        helper.join(timeout=30)
    assert not helper.is_alive()
    assert not echo.dealt


def test_who_waits_comes_back_when_the_loop_is_over() -> None:
    echo = Echo()
    echo.events.put("end")
    echo.loop.help(lambda: False)
    assert echo.dealt == [("end", threading.current_thread())]
