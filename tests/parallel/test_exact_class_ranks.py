"""A script that passes over parameters in parts by asking for their exact class is told so."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from codes import without_code
from ronde.patching.caller import is_users_module
from ronde.runtime.type_questions import questions, questions_of_script
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]

HELPERS = '''"""A module beside a script."""
from torch import nn


def chosen(model):
    return [p for p in model.parameters() if type(p) is nn.Parameter]


def asked(model):
    return [p for p in model.parameters() if isinstance(p, nn.Parameter)]
'''
HALVING = """import torch


def half(value):
    return 0.5 * value if {question} else value
"""


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("x = 1\nif type(p) is not torch.nn.Parameter: pass", [2]),
        ("type(p) == Parameter", [1]),
        ("type(p) in (Tensor, nn.Parameter)", [1]),
        ("nn.Parameter is type(p)", [1]),
        ("isinstance(p, nn.Parameter)", []),
        ("type(p) is Tensor or Parameter", []),
        ("type(p) == type(nn.Parameter(x))", []),
        ("def broken(: nn.Parameter", []),
    ],
)
def test_comparisons_are_found_in_the_source(source: str, lines: list[int]) -> None:
    assert list(questions(source, "Parameter")) == lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("if type(b) is torch.Tensor: pass", [1]),
        ("kept = {k: v for k, v in d.items()\n        if type(v) == Tensor}", [2]),
        ("type(v) in (Tensor, float)", [1]),
        ("v.__class__ is torch.Tensor", [1]),
        ("type(v).__name__ == 'Tensor'", [1]),
        ("movers = {torch.Tensor: move}\nmovers.get(type(v), keep)(v)\nmovers[type(v)]", [2, 3]),
        ("movers = {list: move}\nmovers[type(v)](v, torch.Tensor)", []),
        ("isinstance(v, torch.Tensor) and issubclass(type(v), torch.Tensor)", []),
        ("type(v) is dict or Tensor", []),
        ("self.kind == 'Tensor'", []),
    ],
)
def test_comparisons_with_tensors_are_found(source: str, lines: list[int]) -> None:
    assert sorted(questions(source, "Tensor")) == lines


def imported(folder: str, source: str = HELPERS) -> ModuleType:
    path = Path(folder) / "clipping_helpers.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("clipping_helpers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["clipping_helpers"] = module
    spec.loader.exec_module(module)
    return module


def notes(rank: Rank, folder: str, plan: str, way: str) -> list[str]:
    """What is said of a script that clips what it has chosen."""
    place = Path(folder) / f"{plan}-{way}-{rank.rank}"
    place.mkdir()
    helpers = imported(str(place))
    try:
        with rank.session(plan) as session:
            model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(8, 64)).square().mean().backward()
                nn.utils.clip_grad_norm_(getattr(helpers, way)(model), 1.0)
                optimizer.step()
            assert all(isinstance(each, nn.Parameter) for each in model.parameters())
            found = session.summary().notes
            return [each for each in found if "clipping_helpers" in each or "clip_grad" in each]
    finally:
        del sys.modules["clipping_helpers"]


def test_lines_that_ask_are_named_where_parameters_are_in_parts(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks(2, notes, str(tmp_path), "zero3", "chosen"):
        (asked,) = found
        assert "clipping_helpers.py:6 compares type(...) with Parameter" in asked
        assert "write isinstance(..., torch.nn.Parameter)" in asked


def test_under_other_plans_nothing_is_said(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks(2, notes, str(tmp_path), "zero2", "chosen") == [[]] * 2


def test_nothing_is_said_of_clipping_what_isinstance_has_chosen(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks(2, notes, str(tmp_path), "zero3", "asked"):
        assert not any(each.startswith("clip_grad") for each in found)


def halved(rank: Rank, folder: str, question: str, plan: str) -> list[str]:
    """What is said of a script that asks a helper to scale losses."""
    place = Path(folder) / str(rank.rank)
    place.mkdir()
    helpers = imported(str(place), HALVING.format(question=question))
    try:
        with rank.session(plan) as session:
            helpers.half(nn.Linear(4, 2)(torch.ones(8, 4)).sum()).backward()
            return [each for each in session.summary().notes if "clipping_helpers" in each]
    finally:
        del sys.modules["clipping_helpers"]


def test_lines_that_ask_for_the_class_of_a_tensor_are_named(ranks: Ranks, tmp_path: Path) -> None:
    for (found,) in ranks(2, halved, str(tmp_path), "type(value) is torch.Tensor", "ddp"):
        assert "clipping_helpers.py:5: type(...) is compared with Tensor" in found
        assert without_code(found).endswith("write isinstance(..., torch.Tensor)")


def test_nothing_is_said_of_isinstance(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks(2, halved, str(tmp_path), "isinstance(value, torch.Tensor)", "ddp") == [[]] * 2


class _Lazy(ModuleType):
    """As SpeechBrain's, whose optional parts fail to import."""

    def __getattr__(self, name: str) -> object:
        raise ImportError(f"{self.__name__} cannot be imported for {name}")


def test_lazy_modules_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lazy_part", _Lazy("lazy_part"))
    assert isinstance(questions_of_script("Parameter"), list)
    assert not is_users_module(sys.modules["lazy_part"])


def test_the_interpreter_and_what_is_installed_are_not_looked_at() -> None:
    assert not any(
        "site-packages" in each or "ronde/parallel" in each for each in questions_of_script("Parameter")
    )
