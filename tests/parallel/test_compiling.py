"""`compile=true` compiles models, and leaves nothing where a script would find it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ronde.errors import UsageError
from ronde.parallel.compute import compile
from ronde.parallel.compute.compile import Compile, require_compiler
from ronde.patching.patches import Patches
from ronde.testing.parity import assert_parity
from ronde.testing.run_ranks import Rank


@contextmanager
def compiled_calls() -> Iterator[list[str]]:
    """The shapes of results of compiled calls."""
    calls: list[str] = []

    def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(*args: Any) -> Any:
            result = function(*args)
            calls.append(str(tuple(result.shape)))
            return result

        return compiled

    patches = Patches()
    Compile(None, compiler).install(patches)
    try:
        yield calls
    finally:
        patches.restore()


def test_models_are_compiled_and_losses_are_not() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 2))
    with compiled_calls() as calls:
        for _ in range(2):
            nn.MSELoss()(model(torch.randn(4, 3)), torch.zeros(4, 2)).backward()
    assert calls == ["(4, 2)", "(4, 2)"]


def test_nothing_of_it_is_saved_or_copied() -> None:
    model = nn.Linear(3, 2)
    names = list(model.state_dict())
    with compiled_calls():
        model(torch.randn(4, 3))
    assert list(model.state_dict()) == names
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other._compiled_call_impl is None
        assert vars(other).keys() == vars(nn.Linear(3, 2)).keys()


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile.shutil, "which", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"there is no g\+\+ or clang\+\+ or c\+\+ on the PATH; install"):
        require_compiler({})
    with pytest.raises(UsageError, match="there is no cc7 on the PATH"):
        require_compiler({"CXX": "cc7"})


def _trained(model: nn.Module) -> torch.Tensor:
    """By three calls: the first is observed and the second compared with it, uncompiled."""
    torch.manual_seed(1)
    for _ in range(3):
        model(torch.randn(7, 4, dtype=torch.float64)).square().sum().backward()
    (gradient, *_) = (parameter.grad for parameter in model.parameters())
    assert gradient is not None
    return gradient.clone()


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def _on_ranks(rank: Rank) -> tuple[torch.Tensor, int, dict[str, int]]:
    traced = 0

    def counting(graph: Any, _: Any) -> Any:
        nonlocal traced
        traced += 1
        return graph.forward

    plain, model = torch.compile, _model()
    torch.compile = lambda function, **_: plain(function, backend=counting)
    try:
        with rank.session("compile=true") as session:
            return _trained(model), traced, dict(session.tally.sharded)
    finally:
        torch.compile = plain


def test_ranks_run_compiled_models(ranks: Any) -> None:
    expected = _trained(_model())
    for gradient, traced, sharded in ranks(2, _on_ranks):
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)
        assert traced == 1
        assert sharded == {"Sequential": 3}


@pytest.mark.soak
def test_one_rank_draws_dropout_as_plain_torch_does(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "scripts" / "transformer.py"
    assert_parity(script, ranks=1, place=tmp_path, plan="compile=true", double=False, steps=20)
