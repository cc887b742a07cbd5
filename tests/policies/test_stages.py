"""Which modules make up the stages of a pipeline."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from ronde.policies.stages import cut_into_stages, least_maximum


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.drop = nn.Dropout(0.1)


class Body(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 8)
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.norm = nn.LayerNorm(8)


class Model(nn.Module):
    """As Hugging Face builds: a body in a model with a head, tied or not."""

    def __init__(self, blocks: int = 4, *, tied: bool = False) -> None:
        super().__init__()
        self.body = Body(blocks)
        self.positions = nn.Parameter(torch.zeros(5, 8))
        self.head = nn.Linear(8, 40, bias=False)
        if tied:
            self.head.weight = self.body.embed.weight


def names(model: nn.Module, stages: int) -> list[list[str]]:
    cut = cut_into_stages(model, stages)
    return [[unit.name for unit in cut.units if unit.stage == stage] for stage in range(stages)]


def test_blocks_of_a_list_are_not_divided_and_modules_that_hold_one_are_open():
    assert names(Model(), 2) == [
        ["body.embed", "body.blocks.0", "body.blocks.1", "body.blocks.2"],
        ["body.blocks.3", "body.norm", "head"],
    ]


def test_chunks_of_stages_come_by_turns():
    cut = cut_into_stages(Model(8), 2, chunks=2)
    places = [(unit.chunk, unit.stage) for unit in cut.units]
    assert places == sorted(places)
    assert set(places) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert cut_into_stages(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), 2, chunks=2).chunks == 1


def test_sequences_in_sequences_are_one_chain():
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    )
    assert names(model, 2) == [["0.0"], ["0.1", "1.0", "1.1"]]


def test_where_nothing_repeats_a_module_is_opened_until_each_stage_has_one():
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    assert names(Plain(), 2) == [["first"], ["second"]]
    assert names(nn.Sequential(Plain()), 2) == [["0.first"], ["0.second"]]
    assert names(nn.Linear(4, 4), 2) == [[], [""]]


def test_what_several_stages_use_and_what_no_unit_has_is_on_every_rank():
    model = Model(tied=True)
    cut = cut_into_stages(model, 2)
    assert [id(each) for each in cut.shared] == [id(model.positions), id(model.head.weight)]
    assert cut.stage_of(model.head.weight) is None
    assert cut.stage_of(model.body.norm.weight) == 1


def test_a_part_of_a_model_keeps_the_stages_of_the_whole():
    model = Model()
    whole = cut_into_stages(model, 2)
    part = cut_into_stages(model.head, 2, whole.stage_of)
    assert [unit.stage for unit in part.units] == [1]
    assert whole.stands(model)
    model.head = nn.Linear(8, 40, bias=False)
    assert not whole.stands(model)


@pytest.mark.parametrize("runs", [1, 2, 3, 5])
def test_the_largest_stage_is_as_small_as_can_be(runs: int):
    costs = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
    numbers = least_maximum(costs, runs)
    assert numbers == sorted(numbers)
    largest = max(sum(c for c, n in zip(costs, numbers, strict=True) if n == run) for run in range(runs))
    ends = itertools.combinations_with_replacement(range(len(costs) + 1), runs - 1)
    best = min(max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *cuts, len(costs)])) for cuts in ends)
    assert largest == best
