"""`hvd.elastic`: training state that is committed, restored after failures and synchronized.

Under `ronde horovodrun --min-np` ranks come and go (`ronde.compat.elastic`); otherwise they are fixed.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from ronde.compat.engine import HorovodInternalError
from ronde.compat.horovod import basics
from ronde.compat.horovod.functions import broadcast_object
from ronde.compat.horovod.operations import broadcast_async, synchronize

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run"]

# Failures of one call among the same ranks after which it is given up.
_MOST_FAILURES = 3


class HostsUpdatedInterrupt(RuntimeError):
    """Raised when hosts have come or gone. Ranks form a new generation and continue with their state."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("hosts have come or gone")
        self.skip_sync = skip_sync


class State:
    """The base of a training state; attributes are the caller's."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Add functions to call after each new generation."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """No-op: `check_host_updates` polls."""

    def commit(self) -> None:
        """Save the state, and check for changed hosts."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Check whether hosts have come or gone. Collective.

        Raises:
            HostsUpdatedInterrupt: hosts have come or gone.
        """
        place = basics.engine().place
        if not place.is_elastic:
            return
        newest = torch.tensor([basics.newest_generation() if place.rank == 0 else 0])
        if int(synchronize(broadcast_async(newest, 0))) > place.generation:
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} needs save()")

    def restore(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} needs restore()")

    def sync(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} needs sync()")

    def reset(self) -> None:
        """Adapt the state to a new generation."""


class ObjectState(State):
    """A state of picklable attributes."""

    def __init__(
        self, bcast_object: Any = broadcast_object, get_rank: Any = basics.rank, **kwargs: Any
    ) -> None:
        super().__init__()
        self._broadcast = bcast_object
        self._saved: dict[str, Any] = kwargs
        self.__dict__.update(kwargs)

    def save(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._saved}

    def restore(self) -> None:
        self.__dict__.update(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Load the values that rank 0 has saved."""
        if self._saved:
            self._saved = self._broadcast(self._saved)
            self.__dict__.update(copy.deepcopy(self._saved))


class TorchState(ObjectState):
    """A state of model, optimizer, samplers and picklable attributes.

    Args:
        kwargs: objects, kept by their `state_dict` if they have one, else by a copy.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        self._loaded = {
            name: each for name, each in given.items() if each is not None and hasattr(each, "state_dict")
        }
        super().__init__(**{name: each for name, each in kwargs.items() if name not in self._loaded})
        self.__dict__.update(self._loaded)
        self._kept: dict[str, Any] = {}
        self.save()

    def save(self) -> None:
        self._kept = {name: copy.deepcopy(getattr(self, name).state_dict()) for name in self._loaded}
        super().save()

    def restore(self) -> None:
        for name, kept in self._kept.items():
            getattr(self, name).load_state_dict(copy.deepcopy(kept))
        super().restore()

    def sync(self) -> None:
        for name in self._loaded:
            value = getattr(self, name)
            value.load_state_dict(broadcast_object(value.state_dict()))
        super().sync()
        self.save()

    def reset(self) -> None:
        for name in self._loaded:
            value = getattr(self, name)
            if isinstance(value, ElasticSampler):
                value.reset()


class ElasticSampler(Sampler[int]):
    """A sampler of this rank's share of the epoch's unseen samples."""

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas, self.rank = 1, 0
        self.remaining_indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with all samples unseen."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Count a batch of each rank as seen.

        Args:
            batch_idx: accepted without effect.
        """
        self.processed_num += batch_size * self.num_replicas

    def reset(self) -> None:
        """Distribute the unseen samples over the present ranks."""
        if basics.is_initialized():
            self.num_replicas, self.rank = basics.size(), basics.rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's samples, equally many on every rank by repeating some."""
        filled = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        return itertools.islice(filled, self.rank, None, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `func(state, ...)` to be called again after ranks change or are lost.

    After a failed collective the state is first restored to the last commit.
    """

    @functools.wraps(func)
    def wrapped(state: State, *args: Any, **kwargs: Any) -> Any:
        failures, again, to_sync = 0, False, True
        while True:
            place = basics.engine().place
            try:
                if again:
                    state.on_reset()
                if to_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError:
                failures += 1
                if failures > _MOST_FAILURES:
                    raise
                state.restore()
                to_sync = True
            except HostsUpdatedInterrupt as changed:
                state.save()  # else `sync` would mix committed values with newer weights
                to_sync = not changed.skip_sync
            basics.shutdown()
            basics.init()
            again = True
            if basics.engine().place.peers != place.peers:
                failures = 0

    return wrapped
