"""What pages show of the code is whole: every key and preset, every command, every public name."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import ronde
from ronde import errors, plan
from ronde.plan.axes import AXES, KEYS

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def placeholders(page: str) -> set[str]:
    return set(re.findall(r"^\{\{ (\w+) \}\}$", (DOCS / page).read_text(), re.MULTILINE))


def test_the_plan_s_page_has_every_axis_and_key(generated: ModuleType) -> None:
    assert placeholders("reference/plan.md") == {f"keys_{axis}" for axis in AXES} | {"presets"}
    tables = "\n".join(generated.plan_keys(axis) for axis in AXES)
    assert [key for key in KEYS if f"| `{key}` |" not in tables] == []


def test_what_a_table_says_to_run_does_run(generated: ModuleType) -> None:
    assert "| `state` | one of replicated, zero1" in generated.plan_keys("state")
    assert "| not set | all | order of micro-batches" in generated.plan_keys("compute")
    assert "| `auto` | all | draws inside the model" in generated.plan_keys("data")
    lines = generated.presets().splitlines()[2:]
    assert [re.match(r"\| `([\w-]+)`", line)[1] for line in lines] == list(plan.PRESETS)  # pyright: ignore[reportOptionalSubscript]
    ready = [line for line in lines if "**yes**" in line]
    assert ready == lines  # every preset is built


def test_the_page_of_commands_has_each_command(generated: ModuleType) -> None:
    expected = {"help", *("help_" + "_".join(words).replace("-", "_") for words in generated.commands())}
    assert placeholders("reference/cli.md") == expected


def test_a_help_text_is_what_the_command_prints(generated: ModuleType) -> None:
    text = generated.help_text("plan", "show")
    assert text.startswith("Usage: ronde plan show [OPTIONS]")
    assert "--ranks" in text


def test_the_api_page_names_everything_public() -> None:
    page = (DOCS / "reference" / "api.md").read_text()
    told = set(re.findall(r"auto\w+:: ([\w.]+)", page)) | set(re.findall(r"`(ronde\.\w+)`", page))
    public = {f"ronde.{name}" for name in ronde.__all__}
    public |= {f"ronde.errors.{name}" for name in errors.__all__}
    public |= {f"ronde.plan.{name}" for name in plan.__all__} - {"ronde.plan.PRESETS"}
    assert sorted(public - told) == []


def test_the_page_of_a_run_has_each_metric(generated: ModuleType) -> None:
    assert placeholders("guides/seeing-a-run.md") == {"metrics"}
    assert "| `ronde_run_phase_seconds_total{rank, phase}` | Seconds by phase" in generated.metrics()
