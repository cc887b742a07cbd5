"""Where parts live: what stands for what, and what is copied."""

from __future__ import annotations

import pytest
import torch

from ronde.sync.memory_home import Home, HostMemory, OnDevice


def test_on_the_device_parts_are_the_elements_themselves() -> None:
    home = OnDevice()
    whole = torch.arange(6.0)
    assert home.lodge(whole) is whole
    assert home.send_down(whole) is whole
    home.down([whole], [whole])
    part = home.room(2, whole)
    home.down([part], [whole[4:]])
    assert part.tolist() == [4, 5]
    home.up([whole[:2]], [part])
    assert whole.tolist() == [4, 5, 2, 3, 4, 5]


def test_in_host_memory_they_are_copies() -> None:
    home = HostMemory()
    whole = torch.arange(6.0, dtype=torch.float64)
    part = home.lodge(whole[2:5])
    assert (part.shape, part.dtype, part.is_pinned()) == ((3,), torch.float64, False)
    assert home.lodge(part) is part
    assert home.lodge(part[1:]).data_ptr() == part[1:].data_ptr()
    home.down([part], [whole[2:5]])
    part.mul_(10)
    assert whole.tolist() == [0, 1, 2, 3, 4, 5]
    home.up([whole[2:5]], [part])
    assert whole.tolist() == [0, 1, 20, 30, 40, 5]
    sent = home.send_down(whole[:1])
    home.down([], [])
    assert sent.tolist() == [0]
    assert home.lodge(sent) is sent


@pytest.mark.parametrize("home", [OnDevice(), HostMemory()])
def test_what_is_kept_is_a_copy(home: Home) -> None:
    for value in (torch.ones(3, 4).t(), torch.tensor(2.0)):
        kept = home.keep(value)
        assert kept.data_ptr() != value.data_ptr()
        assert torch.equal(kept, value)


def test_rooms_that_are_gone_are_forgotten() -> None:
    home = HostMemory()
    like = torch.empty(0)
    kept = [home.room(1, like) for _ in range(5)]
    for _ in range(1000):
        home.room(1, like)
    assert len(home._rooms) < 200
    assert all(home.lodge(room) is room for room in kept)
