"""Scripts that distribute their work themselves: ronde leaves them alone, as torchrun does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from ronde.launch.rank_config import RankConfig
from ronde.messages import as_note
from ronde.patching.patches import Patches
from ronde.runtime.torchrun import torchrun_environment

__all__ = ["install"]

# Modules of torch in which a script, or torch itself for a device mesh, finds init_process_group.
_HOLDS_INIT = {
    "torch.distributed",
    "torch.distributed.distributed_c10d",
    "torch.distributed.device_mesh",
}


def install(patches: Patches, config: RankConfig, retire: Callable[[], None]) -> None:
    """Call `retire` once the script makes a process group."""
    plain: Any = torch.distributed.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        """Withdraw ronde from a script that distributes its work; set torchrun's environment."""
        if config.place.rank == 0 and not config.run.quiet:
            said = "the script calls init_process_group: it runs as under torchrun, unchanged (use --native "
            print(f"ronde: {as_note(f'{said}to say so from the start) [R173]')}", file=sys.stderr)
        retire()
        os.environ.update(torchrun_environment(config))
        return plain(*args, **kwargs)

    for module in _HOLDS_INIT & sys.modules.keys():
        patches.set(sys.modules[module], "init_process_group", init_process_group)
