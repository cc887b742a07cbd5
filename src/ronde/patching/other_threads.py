"""Other threads of the script: they run whenever they please, and may draw or change anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["is_of_script", "others", "others_run"]

# Whose threads run no code of a script's: ours, feeders of queues, monitors of progress bars, loggers'.
_BACKSTAGE = (
    "ronde.", "multiprocessing.queues", "multiprocessing.resource_sharer", "torch._", "torch.utils.data.",
    "tqdm.", "tensorboard.", "tensorboardX.", "wandb.",
)  # fmt: skip


def others_run() -> bool:
    """Whether threads are there beside this one that may run code of the script's."""
    return any(True for _ in others())


def is_of_script(thread: threading.Thread) -> bool:
    """Whether it may run code of the script's, and is no feeder, monitor or logger of a library's."""
    # A timer keeps what it calls by another name.
    target: Any = getattr(thread, "_target", None) or getattr(thread, "function", None) or type(thread).run
    began = not isinstance(thread, threading._DummyThread)  # Python has not started that
    return began and not str(getattr(target, "__module__", "")).startswith(_BACKSTAGE)


def others() -> Iterator[threading.Thread]:
    """The threads beside this one that may run code of the script's."""
    here = threading.current_thread()
    return (each for each in threading.enumerate() if each is not here and is_of_script(each))
