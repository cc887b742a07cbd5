"""Functions of torch that ronde wraps in several layers, with their order.

`Patches.layer` replaces each by a chain in the order declared here. It depends neither on the order of
installation nor on the layers that a plan needs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from ronde.patching.torch_internals import BaseDataLoaderIter

__all__ = ["ADD_PARAM_GROUP", "BACKWARD", "GRAD", "MODULE_CALL", "NEXT_BATCH", "STACKS", "Stack"]


class Stack(NamedTuple):
    """A function of torch and its possible layers.

    Attributes:
        owner: the module or class that has the function.
        name: the function's name there.
        layers: names of the layers, the outermost first.
    """

    owner: Any
    name: str
    layers: tuple[str, ...]


MODULE_CALL = Stack(
    torch.nn.Module,
    "__call__",
    (
        "structure",  # finds the first model of a script
        "costs",  # counts the operations of a model, for the planner
        "recording",
        "checkpoints",
        "publishing",
        "precision",
        "compile",
        "boundary",  # cuts the batch: layers above see the whole one, layers below this rank's rows
        "sequences",  # cuts those that begin inside of a model
        "mixtures",  # sends tokens to the ranks of their experts
        "features",  # of experts that a tensor group cuts
        "recompute",
    ),
)
BACKWARD = Stack(
    torch.autograd,
    "backward",
    (
        "recording",
        "checkpoints",
        "model parallel",  # adds the shards of these parameters
        "loss scaling",
        "averaging",
        "reducer",
    ),
)
GRAD = Stack(torch.autograd, "grad", ("recording", "checkpoints", "model parallel", "boundary"))
NEXT_BATCH = Stack(
    BaseDataLoaderIter,
    "__next__",
    (
        "verify",
        "samples",
        "recording",
        "checkpoints",
        "meter",  # outside of the cut, which is a part of loading
        "boundary",
        "slices",  # for a rank that trains by itself
    ),
)
ADD_PARAM_GROUP = Stack(
    Optimizer,
    "add_param_group",
    (
        "checkpoints",
        "loss scaling",
        "servers",
        "reducer",
        "order",  # sorts parameters as on rank 0, for all layers above
    ),
)
STACKS = (MODULE_CALL, BACKWARD, GRAD, NEXT_BATCH, ADD_PARAM_GROUP)
