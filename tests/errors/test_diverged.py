"""Scripts in which ranks part: no hang, no number that is wrong, and both places named."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from errors.normal import ADVICE, normal
from ronde.testing import forked

SCRIPT = """\
import os, torch
from torch.utils.data import DataLoader, TensorDataset
{before}
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr={lr})
generator = torch.Generator().manual_seed({seed})
data = TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))
for inputs, targets in DataLoader(data, 8, shuffle=True, generator=generator):
    loss = torch.nn.functional.cross_entropy(model(inputs), targets) * {weight}
    if {branch}:
        print(model(inputs).sum().item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
# Stands for a clock, a process number or a host name: something that is another on every rank.
OWN = "int('rank-1' in os.readlink('/proc/self/fd/1'))"


def said(
    folder: Path,
    *,
    before: str = "",
    seed: str = "0",
    branch: str = "False",
    lr: str = "0.1",
    weight: str = "1",
) -> str:
    before = textwrap.dedent(before)
    script = SCRIPT.format(before=before, seed=seed, branch=branch, lr=lr, weight=weight)
    (folder / "train.py").write_text(script)
    done = forked.run(["run", "--ranks", "2", "--run-dir", "logs", "train.py"], directory=folder)
    assert done.returncode == 1
    assert done.stdout == ""
    return normal(done.stderr, folder)


def expected(*places: str) -> str:
    return (
        "ronde: error: the ranks have diverged: they take different paths through the script, so their "
        "results would be wrong\n" + "".join(f"  {place}\n" for place in places) + f"{ADVICE}\n"
        "logs of all ranks: DIR/logs\n"
    )


def test_a_branch_that_one_rank_takes(tmp_path: Path) -> None:
    """The second call is compared with the first, on which ranks vote."""
    assert said(tmp_path, branch=OWN) == expected(
        "rank 0 at train.py:13: backward", "rank 1 at train.py:11: all_reduce of int32 [1]"
    )


def test_a_clock_that_one_rank_reads(tmp_path: Path) -> None:
    """A reading is a broadcast, which the other rank does not come to."""
    assert said(tmp_path, before="import time", branch=f"{OWN} and time.time() > 0") == expected(
        "rank 0 at train.py:13: backward", "rank 1 at train.py:10: broadcast of int64 [3]"
    )


@pytest.mark.soak
def test_batches_of_each_ranks_own(tmp_path: Path) -> None:
    text = re.sub(r"samples: [\d, ]+(?=, \.\.\.)", "samples: IDS", said(tmp_path, seed=OWN))
    text = re.sub(r"digest [0-9a-f]+", "digest N", text)
    assert text == expected(
        "rank 0 at train.py:8: batch of 8 samples: IDS, ... (digest N)",
        "rank 1 at train.py:8: batch of 8 samples: IDS, ... (digest N)",
    )


@pytest.mark.soak
def test_learning_rates_of_each_ranks_own(tmp_path: Path) -> None:
    """As a thread makes them that goes by the clock."""
    text = re.sub(r" \(the first; .*?\)", "", said(tmp_path, lr=f"0.1 * (1 + {OWN})"))
    assert text == expected(
        "rank 0 at train.py:14: SGD.step at lr 0.1", "rank 1 at train.py:14: SGD.step at lr 0.2"
    )


@pytest.mark.parametrize("held", [False, True])
def test_what_a_process_gives_in_an_order_of_each_ranks_own(tmp_path: Path, held: bool) -> None:
    """By memory that it shares: a batch, and what a data set holds."""
    before = f"""
        import multiprocessing
        def fill(shared, value):
            shared[:] = [value] * len(shared)
        shared = multiprocessing.Array("d", 32 * 4)
        process = multiprocessing.Process(target=fill, args=(shared, {OWN} + 1.0))
        process.start()
        process.join()
        given = torch.tensor(shared[:]).float().view(32, 4)
        class Given(torch.utils.data.Dataset):
            def __len__(self):
                return 32
            def __getitem__(self, index):
                return given[index], 1
        if {held}:
            TensorDataset = lambda *_: Given()
        else:
            torch.nn.Linear(4, 2)(given)"""
    text = re.sub(r"digest [0-9a-f]+", "digest N", said(tmp_path, before=before))
    what = "a first batch" if held else "Linear on 32 rows"
    assert re.findall(r"rank \d at train.py:\d+: (.*)", text) == [f"{what} (digest N)"] * 2


@pytest.mark.soak
def test_a_weight_of_the_loss_of_each_ranks_own(tmp_path: Path) -> None:
    """As a thread sets it."""
    before = "import threading\nthreading.Thread(target=int).start()"
    text = said(tmp_path, before=before, weight=f"(0.5 + {OWN} / 4)")
    text = re.sub(r"digest [0-9a-f]+", "digest N", text)
    (first, other) = re.findall(r"rank \d at train.py:\d+: backward of (\S+) \(digest N\)", text)
    assert float(other) == pytest.approx(1.5 * float(first), rel=1e-5)


@pytest.mark.soak
def test_parameters_of_each_ranks_own(tmp_path: Path) -> None:
    before = f"""
        class Own(torch.nn.Linear):
            def reset_parameters(self):
                torch.nn.init.constant_(self.weight, {OWN} + 1.0)
                torch.nn.init.zeros_(self.bias)
        torch.nn.Linear = Own"""
    text = said(tmp_path, before=before)
    assert "SGD.step (the first; sum of all parameters 8" in text
    assert "rank 1 at train.py:" in text
