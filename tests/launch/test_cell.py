"""The variables of a notebook's cell: which go to the ranks, how, and which come back."""

from __future__ import annotations

import inspect
import random
import threading
from typing import Any

import pytest
import torch
from torch import nn

from ronde.cli.notebook import options_of
from ronde.errors import UsageError
from ronde.launch.cell import Cell, CellResult, names_of, pack, put_states, states, unpack
from ronde.launch.pickle_by_value import dumps, learn_sources, loads
from ronde.runtime import cell as on_rank
from ronde.runtime.tracebacks import formatted

MAGIC = "%%ronde --ranks 2\n"


@pytest.mark.parametrize(
    ("source", "read", "assigned"),
    [
        ("y = f(x).x_attribute", "f x", "y"),
        ("n += 1\ndel old", "n old", "n old"),
        ("for _ in range(n):\n    total = n", "n", "total"),
        ("import os.path as p\nfrom m import q\nwith a as b, (c := d): pass", "a d", "p q b c"),
        (
            "def step(model):\n    global lr\n    lr = rate\n    local = model\n    return [k for k in rows]",
            "rate rows",
            "step lr",
        ),
        ("class A(B):\n    size = width\n    def m(self): return A, len(names)", "A B width names", "A"),
    ],
)
def test_names_of_a_cell(source: str, read: str, assigned: str) -> None:
    names = names_of(MAGIC + source, "Cell In[1]")
    assert names.read - {"total"} == set(read.split())
    assert names.assigned == set(assigned.split())


def run(source: str, home: dict[str, Any]) -> CellResult:
    """Run a cell in this process, as one rank would, and bring its variables back."""
    packed = Cell.read(pack(MAGIC + source, "Cell In[7]", home, str, keeps_states=True).pickled())
    result = on_rank.run_cell(packed)
    unpack(result, home)
    return result


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Variables of a notebook; the module `__main__` is the test's own again afterwards."""
    import sys

    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    variables: dict[str, Any] = {"__name__": "__main__"}
    learn_sources({"Cell In[1]": CELL_1})
    exec(compile(CELL_1, "Cell In[1]", "exec"), variables)
    return variables


CELL_1 = """
step, words = 3, ["a"]
class Counter:
    def __init__(self): self.n, self.held = 0, []
def add(counter):
    counter.n += step
    return counter
def boom(k):
    return 1 / k
counter, other = Counter(), Counter()
counter.held.append(other)
names = [counter]
"""


def test_what_a_cell_changes_comes_back_into_the_objects_that_there_are(home: dict[str, Any]) -> None:
    counter, other, words, kind = (home[name] for name in ("counter", "other", "words", "Counter"))
    run("step = 5; add(counter); counter.held[0].n = 2; words += ['b']; made = [counter, Counter()]", home)
    assert home["counter"] is counter
    assert counter.n == 5  # of the cell's own step, as on one device
    assert home["other"] is other
    assert other.n == 2  # the cell did not name it
    assert home["words"] is words
    assert words == ["a", "b"]
    assert {type(each) for each in home["made"]} == {kind}
    home["made"][0].n = 9
    assert home["names"][0].n == 9


def test_functions_of_a_cell_read_the_notebooks_variables(home: dict[str, Any]) -> None:
    run("def twice(): return 2 * step * factor\nfactor = 2", home)
    home["step"] = 10
    assert home["twice"]() == 40
    assert inspect.getsource(home["twice"]) == "def twice(): return 2 * step * factor\n"


def test_what_a_cell_leaves_alone_is_not_sent_back(home: dict[str, Any]) -> None:
    home["big"] = torch.zeros(100_000)
    result = run("shape = big.shape; first = big[:2]; pair = (big, 1)", home)
    assert len(result.variables) < 5_000
    assert home["pair"][0] is home["big"]
    assert home["first"].untyped_storage().nbytes() == 8


def test_a_loader_keeps_its_data_set(home: dict[str, Any]) -> None:
    home["data"] = data = torch.utils.data.TensorDataset(torch.zeros(4, 2))
    home["loader"] = loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    run("for (x,) in loader: pass\nit = iter(loader)", home)
    assert home["loader"] is loader
    assert loader.dataset is data


def test_what_cannot_be_pickled_is_named(home: dict[str, Any]) -> None:
    assert run("g = (i for i in [1]); ok = 1", home).left == {"g": "cannot pickle 'generator' object"}
    assert home["ok"] == 1
    home["lock"] = threading.Lock()
    with pytest.raises(UsageError, match=r"reads what cannot be sent to the ranks: lock \(cannot pickle"):
        run("lock.acquire()", home)


def test_deleted_names_go_and_unassigned_ones_stay(home: dict[str, Any]) -> None:
    run("del words\nif step > 9:\n    names = 1", home)
    assert "words" not in home
    assert home["names"] == [home["counter"]]


def test_a_cell_continues_the_notebooks_random_numbers_and_dtype(home: dict[str, Any]) -> None:
    kept = states()
    try:
        put_states({"dtype": torch.float64})
        torch.manual_seed(4)
        random.seed(4)
        want = torch.rand(2), random.random(), torch.rand(1)
        torch.manual_seed(4)
        random.seed(4)
        run("import random, torch\na, b = torch.rand(2), random.random()", home)
        assert torch.equal(home["a"], want[0])
        assert home["b"] == want[1]
        assert torch.equal(torch.rand(1), want[2])
    finally:
        put_states(kept)


def test_the_last_value_is_shown(home: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    run("step * 7", home)
    run("step * 7;", home)
    assert capsys.readouterr().out == "21\n"


def test_a_traceback_has_the_lines_of_the_cells(home: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("\nboom(0)", home)
    lines = formatted(caught.value).splitlines()
    assert '  File "Cell In[7]", line 3, in <module>' in lines
    assert "    boom(0)" in lines
    assert '  File "Cell In[1]", line 9, in boom' in lines
    assert "    return 1 / k" in lines
    assert "ronde/" not in "".join(lines)


def test_tensors_are_pickled_by_content_and_without_a_graph() -> None:
    weight = nn.Parameter(torch.arange(3.0))
    value = {
        "loss": (weight * 2).sum(),
        "w": weight,
        "empty": torch.empty(0, 2),
        "half": torch.ones(2, dtype=torch.bfloat16),
    }
    made = loads(dumps(value, plain=on_rank.plain_tensor), {})
    assert not made["loss"].requires_grad
    assert type(made["w"]) is nn.Parameter
    assert made["empty"].shape == (0, 2)
    assert all(torch.equal(made[name], value[name]) for name in value)
    made["half"].untyped_storage().resize_(0)  # memory of its own
    copy = torch.arange(3.0)
    assert dumps(copy) == dumps(copy.clone())


def test_options_are_those_of_ronde_run() -> None:
    assert options_of("--ranks 3 --plan zero2 --seed=4 -q") == (
        ["--plan", "zero2", "--seed", "4", "--quiet"],
        3,
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--rankz 2", "no such option: --rankz"),
        ("--ranks two", "--ranks two is neither a number from 1 nor auto"),
        ("--checkpoint there", "a cell runs once and on this host, so %%ronde has no --checkpoint"),
        ("--ranks 2 train.py", "%%ronde runs the cell, and takes options alone"),
    ],
)
def test_other_options_are_refused(line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        options_of(line)
    assert message in str(caught.value)
