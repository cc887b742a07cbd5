"""The data axis: how are batches divided?"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from ronde.plan.key import Integer, Spelled, check_fields, choice

__all__ = ["Data", "Loading", "Rng"]

Rng = Literal["auto", "global", "per-rank"]
Loading = Literal["auto", "sliced", "full"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Split of batches and randomness over the ranks.

    Attributes:
        rng: draws inside the model: `global` makes the single-device draw and takes this rank's rows;
            `per-rank` draws independently on each rank; `auto` depends on the device.
        batch_dim: the axis along which batches are cut; None (`auto`) where it is to be found, the first
            axis before the second.
        loading: samples that a rank loads: its slice of every batch (`sliced`), the whole batch (`full`), or
            the slice wherever that gives the same samples (`auto`).
    """

    rng: Annotated[Rng, Spelled("rng", choice(Rng))] = "auto"
    batch_dim: Annotated[int | None, Spelled("batch-dim", Integer(at_least=0, open_word="auto"))] = None
    loading: Annotated[Loading, Spelled("loading", choice(Loading))] = "auto"

    def __post_init__(self) -> None:
        check_fields(self)

    def rng_on(self, device_type: str) -> Literal["global", "per-rank"]:
        """Resolve `rng` for a device of this type ("cpu", "cuda").

        On CPU one generator serves the sampler and the model, and must go on as on one device: draws of
        the whole batch are needed in any case. A CUDA device's generator serves the model only.
        """
        if self.rng != "auto":
            return self.rng
        return "global" if device_type == "cpu" else "per-rank"
