"""The parts of a model that are cut, gathered and freed as one where parameters are sharded."""

from torch import nn


def units(model):
    """The repeated blocks: members of one class of the outermost container that has several; else none."""
    for module in model.modules():
        if not isinstance(module, (nn.Sequential, nn.ModuleList)):
            continue
        members = [part for part in module if any(True for _ in part.parameters())]
        if len(members) > 1 and len({type(part) for part in members}) == 1:
            return members
    return []


def largest_unit(model):
    """How many parameters the largest of them has; what is in none of them is one more."""
    counts = [_count(part.parameters()) for part in units(model)]
    return max([*counts, _count(model.parameters()) - sum(counts)])


def _count(parameters):
    return sum(parameter.numel() for parameter in parameters)
