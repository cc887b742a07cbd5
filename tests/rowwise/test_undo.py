"""A call that must not be cut leaves everything as it was."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from typing import Any

import numpy
import torch
from torch import nn

from ronde.messages import lift
from ronde.rowwise.labels import Marks
from ronde.rowwise.undo import Undo
from rowwise.one_rank import observe
from rowwise.rowwise_cases import Written, linear, table


def mixes(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


def test_tensors_are_as_before() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.many[1:].fill_(3)
        with torch.no_grad():
            self.layer.weight.mul_(2)
        self.fresh = torch.ones(3)
        self.count = self.count + 1
        return mixes(self.norm(self.layer(x)))

    module = Written(
        forward, layer=linear(), norm=nn.BatchNorm1d(6), count=torch.zeros(1), many=torch.zeros(4), fresh=None
    )
    held = dict(module.named_buffers()) | dict(module.named_parameters())
    before = {name: value.clone() for name, value in held.items()}
    assert not observe(module, (table(),)).verdict.sharded
    after = dict(module.named_buffers()) | dict(module.named_parameters())
    assert all(after[name] is value for name, value in held.items())
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert module.fresh is None


def test_attributes_and_containers_are_as_before() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.listed.append(1)
        self.named["b"] = 2
        del self.named["a"]
        self.chosen.add(3)
        self.last.append(4)
        self.ordered.move_to_end("x")
        self.inner["deep"][0].clear()
        self.new = 5
        del self.old
        return mixes(x)

    module = Written(
        forward,
        count=0,
        listed=[0],
        named={"a": 1},
        chosen={1, 2},
        last=deque([1], maxlen=2),
        ordered=OrderedDict(x=1, y=2),
        inner={"deep": [[1, 2]]},
        old=1,
    )
    listed, deep = module.listed, module.inner["deep"][0]
    assert (
        observe(module, (table(),)).verdict.reason
        == "rows of its output depend on other rows, or on their number [R330] (mean)"
    )
    assert (module.count, module.listed, module.named, module.chosen) == (0, [0], {"a": 1}, {1, 2})
    assert (list(module.last), list(module.ordered), module.inner) == ([1], ["x", "y"], {"deep": [[1, 2]]})
    assert module.listed is listed
    assert module.inner["deep"][0] is deep
    assert module.old == 1
    assert not hasattr(module, "new")


def test_generators_are_as_before() -> None:
    own = numpy.random.default_rng(0)

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        random.random()
        numpy.random.rand()
        self.own.random()
        return mixes(x)

    x = table()
    states = (
        torch.get_rng_state(),
        random.getstate(),
        str(numpy.random.get_state()),
        str(own.bit_generator.state),
    )
    assert not observe(Written(forward, own=own), (x,)).verdict.sharded
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert str(numpy.random.get_state()) == states[2]
    assert str(own.bit_generator.state) == states[3]


def test_generators_beside_a_module_are_as_before() -> None:
    beside, module = numpy.random.default_rng(0), Written(lambda self, x: x)
    state = str(beside.bit_generator.state)
    undo = Undo(module, (), [("beside", beside)])
    beside.random()
    assert not undo.generators[0].moved()
    undo.unwind()
    assert str(beside.bit_generator.state) == state


def test_what_is_written_in_place_unobserved_is_as_before() -> None:
    module = Written(lambda self, x: x, count=torch.zeros(3))
    undo = Undo(module, ())
    undo.keep([module.count], Marks())
    module.count[1:] += 1
    assert undo.changes() == "count"
    undo.unwind()
    assert module.count.tolist() == [0, 0, 0]


def test_arguments_are_as_before() -> None:
    def forward(self: Any, x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
        seen.append(1)
        return self.layer(x)

    module, seen = Written(forward, layer=linear()), [0]
    observed = observe(module, (table(), seen), axes=[0, None])
    assert observed.verdict.reason == "it changes a list, dict or object among its arguments [R342]"
    assert seen == [0]


def test_an_argument_that_is_kept_elsewhere_is_taken_back_from_there_only() -> None:
    seen: list[torch.Tensor] = []

    def forward(self: Any, x: torch.Tensor, factors: dict[str, torch.Tensor]) -> torch.Tensor:
        seen.extend((x, factors["x"]))
        return self.layer(x) * factors["x"]

    module, x = Written(forward, layer=linear()), table()
    factors = {"x": x[:, :1]}
    observed = observe(module, (x, factors), axes=[0, 0])
    assert (
        lift(observed.verdict.reason)[1]
        == "it keeps values of the batch in a variable or object outside of the module"
    )
    assert not seen
    assert list(factors) == ["x"]


def test_an_error_of_the_models_own_is_kept() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        raise ValueError("not these rows")

    module = Written(forward, count=0)
    verdict = observe(module, (table(),)).verdict
    assert isinstance(verdict.raised, ValueError)
    assert verdict.raised.__traceback__ is None  # which would hold the rows
    assert lift(verdict.reason)[1] == "it failed on 8 rows (ValueError: not these rows)"
    assert module.count == 0


def test_what_catches_all_does_not_go_on() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        try:
            return x / len(x)
        except:  # noqa: E722 - as some write it
            return x

    assert observe(Written(forward), (table(),)).verdict.reason.startswith("it depends on the number of rows")


def test_a_gradient_taken_inside_is_put_back() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            torch.autograd.backward(self.layer(torch.ones(6)).sum())
        return self.layer(x)

    module = Written(forward, layer=linear())
    assert observe(module, (table(),)).verdict.reason == "its forward runs backward [R339]"
    assert module.layer.weight.grad is None
