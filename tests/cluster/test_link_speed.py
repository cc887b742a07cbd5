"""How long and how wide the way to another host is."""

from __future__ import annotations

import pytest

from ronde.cluster.link_speed import Reflector, measure, steady_rate
from ronde.cluster.reach import listen_everywhere


def test_the_steady_rate_leaves_the_first_burst_out() -> None:
    burst = [(0.0, 0), (0.01, 250_000), (0.5, 312_500), (1.0, 375_000)]
    assert steady_rate(burst) == pytest.approx(125_000)
    assert steady_rate([(0.0, 0), (1.0, 0)]) == 0.0
    assert steady_rate([(0.0, 0)]) == 0.0


def test_a_way_is_measured() -> None:
    listener = listen_everywhere()
    reflector = Reflector(listener, "word")
    port = listener.getsockname()[1]
    found = measure("127.0.0.1", port, "word")
    assert 0 < found.latency < 1
    assert found.rate > 1e6
    with pytest.raises(ConnectionResetError):
        measure("127.0.0.1", port, "none")  # another listens there
    reflector.stop()
