"""Other threads of the script, which may draw or change anything at any time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["is_of_script", "others", "others_run"]

# Prefixes of modules whose threads run no code of a script: ours, feeders of queues, monitors of progress
# bars, loggers.
_BACKSTAGE = (
    "ronde.", "multiprocessing.queues", "multiprocessing.resource_sharer", "torch._", "torch.utils.data.",
    "tqdm.", "tensorboard.", "tensorboardX.", "wandb.",
)  # fmt: skip


def others_run() -> bool:
    """Return whether other threads may run code of the script."""
    return any(True for _ in others())


def is_of_script(thread: threading.Thread) -> bool:
    """Return whether a thread may run the script's code.

    Feeders, monitors and loggers of libraries do not.
    """
    # A timer keeps its function under another name.
    target: Any = getattr(thread, "_target", None) or getattr(thread, "function", None) or type(thread).run
    began = not isinstance(thread, threading._DummyThread)  # a dummy thread was not started by Python
    return began and not str(getattr(target, "__module__", "")).startswith(_BACKSTAGE)


def others() -> Iterator[threading.Thread]:
    """Yield the other threads that may run code of the script."""
    here = threading.current_thread()
    return (each for each in threading.enumerate() if each is not here and is_of_script(each))
