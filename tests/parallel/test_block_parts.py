"""Which rank updates which elements of a block."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from ronde.parallel.block_parts import BlockParts
from ronde.parallel.stage_division import StageDivision, StageRanges
from ronde.parallel.tensor_cut import CutRanges, TensorCut
from ronde.parallel.tensor_division import TensorDivision

PLACES = [(0, 0), (1, 0), (0, 1), (1, 1)]


def parts(division: Any, rank: int = 2) -> BlockParts:
    rows: Any = SimpleNamespace(world_size=2)
    return BlockParts(division, PLACES, rows, rank)


def test_a_block_is_divided_among_those_that_have_it():
    division = TensorDivision(2, {})
    weight = torch.nn.Parameter(torch.arange(1024.0).view(2, 512))
    division._know(weight, TensorCut(0, 2))
    divided = parts(division)
    (ranges,) = divided.assign([weight])
    assert ranges == ((0, 256), (512, 768), (256, 512), (768, 1024))
    assert isinstance(ranges, CutRanges)
    assert ranges.cut == TensorCut(0, 2)
    block = torch.arange(512)
    assert divided.own(weight, block).tolist() == list(range(256, 512))
    assert [each.tolist() for each in divided.beside(weight, block)] == [list(range(256)), []]


def test_whole_parameters_are_divided_too_and_small_ones_by_their_neighbours():
    first, second = (torch.nn.Parameter(torch.zeros(128)) for _ in range(2))
    found = parts(TensorDivision(2, {})).assign([first, second])
    assert found == [((0, 128), (0, 128), None, None), (None, None, (0, 128), (0, 128))]


def test_what_has_other_blocks_now_is_divided_anew():
    division = StageDivision(2)
    weight = torch.nn.Parameter(torch.zeros(512))
    division._know(weight, StageRanges(1, 2, 512))
    divided = parts(division)
    assert divided.assign([weight]) == [(None, (0, 256), None, (256, 512))]
    division.share(weight)
    assert not divided.stands(weight)
    assert divided.assign([weight]) == [((0, 256), (0, 256), (256, 512), (256, 512))]


def test_what_has_no_elements_is_not_divided():
    assert parts(TensorDivision(2, {})).assign([torch.nn.Parameter(torch.zeros(()))]) == [None]
