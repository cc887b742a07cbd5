"""The scripts of the parity suite, killed and resumed: they end as they would have ended."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from killed import SCRIPTS, Place, assert_close, assert_same
from packages import missing

pytestmark = pytest.mark.soak
# The number of ranks changes at each restart.
ELASTIC = ("classifier", "gradient_accumulation", "char_rnn", "early_stopping", "gpt")
# What a run that is to be saved refuses, by a part of the sentence.
REFUSED = {"experiment": "its contents at a step cannot be restored"}
# Each by a line under Limits: names by the process id; what a hook of backward has kept; a seed by the clock.
LIMITS = {"clock_seeds", "config_files", "hooks"}
# Asks for a backend of torch.compile that the suite registers.
NOT_BY_ITSELF = {"compiled"}
TIMED = re.compile(r"'\w*(?:runtime|per_second)': '?[\d.]+'?")


def scripts() -> list[object]:
    names = (path.stem for path in sorted(SCRIPTS.glob("*.py")))
    return [name for name in names if name not in LIMITS | NOT_BY_ITSELF]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", scripts())
def test_a_script_that_is_killed_goes_on(script: str, tmp_path: Path) -> None:
    if missing(SCRIPTS / f"{script}.py"):
        pytest.skip("a package is not installed")
    if script in REFUSED:
        running = Place(tmp_path / "whole", script).start(2)
        assert REFUSED[script] in running.communicate(150)[1]
        return
    whole, cut = Place(tmp_path / "whole", script), Place(tmp_path / "cut", script)
    said = whole.finish(2)
    cut.kill_when_saved(2)
    rest = cut.finish(2, "--resume")
    assert TIMED.sub("", said).endswith(TIMED.sub("", rest))
    assert list(cut.files()) == list(whole.files())
    for name in whole.files():
        assert_same(whole.path / name, cut.path / name, exact=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", ELASTIC)
def test_a_script_goes_on_on_other_numbers_of_ranks(script: str, tmp_path: Path) -> None:
    whole, cut = Place(tmp_path / "whole", script), Place(tmp_path / "cut", script)
    said = whole.finish(3)
    cut.kill_when_saved(3)
    first = cut.newest()
    assert first
    cut.kill_when_saved(2, "--resume", after=first)
    assert cut.newest() > first
    rest = cut.finish(3, "--resume")
    assert_close(said[len(said) - len(rest) :] if len(said) >= len(rest) else said, rest)
    assert list(cut.files()) == list(whole.files())
    for name in whole.files():
        assert_same(whole.path / name, cut.path / name, exact=False)
