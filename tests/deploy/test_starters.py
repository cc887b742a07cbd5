"""Files that people start from: they are whole, and their commands are ones of ronde."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import understood
from ronde.cli import main

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".json")
COMMAND = re.compile(r"(?:^|[\s`])ronde ((?:run|serve|server) -[^`\n]*)", re.MULTILINE)


def commands() -> Iterator[tuple[str, str]]:
    for path in (path for path in FILES if path.parent.name != "prometheus"):
        for words in COMMAND.findall(path.read_text().replace("\\\n", " ")):
            yield str(path.relative_to(DEPLOY)), words.strip()


@pytest.mark.parametrize(("file", "words"), sorted(set(commands())))
def test_commands_are_understood(file: str, words: str) -> None:
    # Variables that systemd, or a reader, sets: numbers where a number is asked for.
    plain = re.sub(r"\$\{(PORT|SERVERS|WORKERS)\}|%i(?=\s)|\bPORT\b", "2", words).replace(
        "${ADDRESS}", "10.0.0.5"
    )
    assert understood(shlex.split(plain))


def test_each_starter_has_a_command() -> None:
    with_commands = {file for file, _ in commands()}
    without = {str(path.relative_to(DEPLOY)) for path in FILES if path.name != "README.md"} - with_commands
    # Words of a Dockerfile are in two lists; those of manifests are compared with what prints them.
    assert {file for file in without if not file.startswith(("kubernetes/", "prometheus/"))} == {
        "docker/Dockerfile"
    }


def test_the_index_names_each_file_or_its_folder() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (DEPLOY / "README.md").read_text())
    named = {DEPLOY / link for link in links} | {
        DEPLOY / "kubernetes/trainjob.yaml",
        DEPLOY / "docker/compose.yaml",
    }
    for path in (path for path in DEPLOY.rglob("*") if path.is_file() and path.name != "README.md"):
        assert path in named or path.parent in named, path


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.suffix in (".yaml", ".yml")], ids=lambda path: path.name
)
def test_yaml_can_be_read(path: Path) -> None:
    assert yaml.safe_load(path.read_text())


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_manifests_are_what_their_first_line_prints(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, _, rest = (DEPLOY / f"kubernetes/{kind}.yaml").read_text().partition("\n")
    with pytest.raises(SystemExit):
        main(shlex.split(first.removeprefix("# ronde ")))
    assert capsys.readouterr().out == rest


def test_the_units_are_templates_that_restart() -> None:
    for path in (DEPLOY / "systemd").iterdir():
        text = path.read_text()
        assert "@.service" in path.name
        assert re.search(r"^Restart=on-failure$", text, re.MULTILINE)
        assert re.search(r"^ExecStart=/usr/bin/env ronde ", text, re.MULTILINE)


@pytest.mark.soak
@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").iterdir()), ids=lambda path: path.name)
def test_systemd_finds_no_fault(path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing")
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.soak
def test_skypilot_finds_no_fault() -> None:
    if importlib.util.find_spec("sky") is None:
        pytest.skip("the package skypilot is missing")
    from sky.utils import common_utils, schemas

    task: dict[str, Any] = yaml.safe_load((DEPLOY / "skypilot/train.yaml").read_text())
    common_utils.validate_schema(task, schemas.get_task_schema(), "skypilot/train.yaml: ")
    common_utils.validate_schema(task["resources"], schemas.get_resources_schema(), "resources: ")
