"""Scripts traced without data: what they keep is what they keep with data."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ronde.errors import UsageError
from ronde.plan import expand
from ronde.planner.cluster_file import read_cluster
from ronde.planner.search import search
from ronde.planner.traced import graph_of, traced
from ronde.runtime.costs.processor import on_processor
from ronde.runtime.costs.trace import trace_script

SCRIPTS = Path(__file__).parents[1] / "scripts"
TEN = (
    *("classifier", "vae", "multitask", "contrastive", "tied"),
    *("seq2seq", "gpt", "frozen", "two_losses", "resnet_batchnorm"),
)

SMALL = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3)), nn.Linear(32, 4))
model.to("cpu")
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(64, 32)
data = data[data.sum(1) > -100]
for x, y in DataLoader(TensorDataset(data, torch.randint(4, (64,))), batch_size=16, shuffle=True):
    output = model(x)
    loss = nn.functional.cross_entropy(output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.item() > 0 and (output.argmax(1) == y).sum().item() >= 0:
        print(loss.item())
    LAST
"""


def written(folder: Path, last: str = "") -> str:
    path = folder / "train.py"
    path.write_text(SMALL.replace("LAST", last or "pass"))
    return str(path)


def saved(amounts: dict[str, Any]) -> float:
    return sum(part["saved_bytes"] for part in [amounts["first"], amounts["last"], *amounts["blocks"]])


def test_a_script_is_traced_and_its_amounts_are_right(tmp_path: Path) -> None:
    script = written(tmp_path)
    graph = graph_of(trace_script(script, []), script)
    assert (graph.batch, graph.layers, graph.slots, graph.itemsize) == (16, 3, 2, 4)
    assert graph.parameters == 3 * (32 * 32 + 32) + 32 * 4 + 4
    assert [(each.rows, each.n, each.k) for each in graph.block.matmuls] == [(1, 32, 32)]
    assert graph.step_flops == 3 * 16 * 2 * (3 * 32 * 32 + 32 * 4)


def test_this_process_goes_on_as_what_it_was(tmp_path: Path) -> None:
    """Else what it starts by `multiprocessing` would run the script."""
    before = sys.modules["__main__"], list(sys.argv), list(sys.path)
    trace_script(written(tmp_path), ["--epochs", "3"])
    assert (sys.modules["__main__"], sys.argv, sys.path) == before


def test_functions_of_devices_have_the_attributes_of_torchs() -> None:
    """The import of torch's compiler reads `__wrapped__` of some."""
    with on_processor():
        assert callable(torch.backends.mps.is_available.__wrapped__)
        assert torch.cuda.device_count() == torch.accelerator.device_count() == 0


def test_without_data_as_with_data(tmp_path: Path) -> None:
    script = written(tmp_path)
    assert saved(trace_script(script, [])) == saved(trace_script(script, [], real=True)) > 0


def test_a_value_is_printed_in_a_form(tmp_path: Path) -> None:
    printed = 'print(f"{nn.utils.clip_grad_norm_(model.parameters(), 1.0):.3f} {loss}")'
    assert "problem" not in trace_script(written(tmp_path, printed), [])


def test_a_copy_of_a_model_has_no_data_either(tmp_path: Path) -> None:
    copied = (
        "average = torch.optim.swa_utils.AveragedModel(nn.Sequential(model, nn.BatchNorm1d(4))); average(x)"
    )
    assert saved(trace_script(written(tmp_path, copied), [])) == saved(trace_script(written(tmp_path), []))


def test_a_checkpoint_is_left_as_it_is(tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.pt"
    checkpoint.write_bytes(b"of a training")
    script = written(tmp_path, f"torch.save(model.state_dict(), {str(checkpoint)!r})")
    assert "problem" not in trace_script(script, [])
    assert checkpoint.read_bytes() == b"of a training"


BY_NAME = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(50, 8), nn.Linear(8, 2)

    def forward(self, labels, words):
        loss = nn.functional.cross_entropy(self.out(self.table(words).mean(1)), labels)
        return OUTPUT

model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    batch = {"labels": torch.randint(2, (16,)), "words": torch.randint(50, (16, 12))}
    output = model(**batch)
    getattr(output, "loss", output).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("output", ["loss", "__import__('types').SimpleNamespace(loss=loss)"])
def test_a_batch_that_is_given_by_name(tmp_path: Path, output: str) -> None:
    script = tmp_path / "by_name.py"
    script.write_text(BY_NAME.replace("OUTPUT", output))
    amounts = trace_script(str(script), [])
    assert (amounts["rows"], amounts["tokens"]) == (16, 12)


@pytest.mark.parametrize(
    ("line", "kernels"),
    [
        ("model = torch.compile(model)", "fused"),
        ("model.compile(mode='reduce-overhead')", "captured"),
        ("model = torch.compile(model, options={'triton.cudagraphs': True})", "captured"),
    ],
)
def test_what_the_script_compiles_is_counted_as_it_starts(tmp_path: Path, line: str, kernels: str) -> None:
    text = SMALL.replace('model.to("cpu")', line).replace("LAST", "pass")
    script = tmp_path / "compiled.py"
    script.write_text(text)
    compiled, plain = (trace_script(each, []) for each in (str(script), written(tmp_path)))
    assert compiled == {**plain, "kernels": kernels}


RETURNS = SMALL.replace("output = model(x)", "output, loss = model(x, y)").replace(
    "loss = nn.functional.cross_entropy(output, y)", ""
)
WITH_LOSS = """
class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        output = self.model(x)
        return output, nn.functional.cross_entropy(output, y)

model = WithLoss(model)
"""
BY_STEP = """
import ronde
step = ronde.Step(model, optimizer, nn.functional.cross_entropy)
for _ in range(2):
    step(data[:16], target=torch.randint(4, (16,)))
"""


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        (SMALL.replace("LAST", "pass"), True),
        (RETURNS.replace('model.to("cpu")', WITH_LOSS).replace("LAST", "pass"), False),
        (SMALL.partition("for x, y")[0] + BY_STEP, False),
    ],
)
def test_schedules_are_those_that_a_run_of_the_script_has(tmp_path: Path, text: str, apart: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    graph = graph_of(trace_script(str(script), []), str(script))
    answer = search(graph, read_cluster("dgx-a100").resized(2), expand(), top=200)
    plans = [expand(choice.plan) for choice in answer.choices]
    schedules = {plan.compute.schedule for plan in plans if plan.mesh.pipeline > 1}
    assert schedules == {"gpipe"} if apart else schedules > {"gpipe", "1f1b"}
    assert any("[R823]" in note for note in answer.notes) == apart


MIXED = """
import torch
from torch import nn

class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16)) for _ in range(4))

    def forward(self, x):
        choices = self.gate(x).topk(2, -1).indices
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = torch.where(choices == number)[0]
            out.index_add_(0, rows, expert(x[rows]))
        return out

model = nn.Sequential(Mixture(), Mixture())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(64, 16)).sum().backward()
    optimizer.step()
"""


def test_experts_and_what_they_are_handed(tmp_path: Path) -> None:
    """Two of four experts for each of 64 rows."""
    script = tmp_path / "mixed.py"
    script.write_text(MIXED)
    graph = graph_of(trace_script(str(script), [], real=True), str(script))
    assert (graph.experts, graph.layers) == (4, 2)
    assert graph.block.parameters_routed == 4 * (16 * 32 + 32 + 32 * 16 + 16)
    assert graph.block.parameters == graph.block.parameters_routed + 4 * 16
    assert graph.block.routed == 2 * 16


ATTENDS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.FIRST, self.SECOND = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        rows, length, width = x.shape
        parts = self.FIRST(self.norm(x)).split(width, dim=2)
        q, k, v = (each.view(rows, length, 4, 4).transpose(1, 2) for each in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.SECOND(torch.relu(y.transpose(1, 2).reshape(rows, length, width)))

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.h = nn.Embedding(32, 16), nn.ModuleList([Block(), Block()])
        self.lm_head = nn.Linear(16, 32, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for block in self.h:
            x = block(x)
        return self.lm_head(x)

model = Decoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    ids = torch.randint(32, (4, 8))
    nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("names", "cut"), [(("qkv", "out"), True), (("mixes", "joins"), False)])
def test_what_tensor_parallelism_divides_is_what_a_run_divides(
    tmp_path: Path, names: tuple[str, str], cut: bool
) -> None:
    script = tmp_path / "attends.py"
    script.write_text(ATTENDS.replace("FIRST", names[0]).replace("SECOND", names[1]))
    graph = graph_of(trace_script(str(script), []), str(script))
    block, last = graph.block, graph.last
    assert [each.cut for each in block.matmuls] == (["columns", "rows"] if cut else ["whole", "whole"])
    assert block.parameters_cut == (16 * 48 + 48 + 16 * 16) * cut
    assert block.parameters_whole + block.parameters_cut == 16 * 48 + 48 + 16 * 16 + 16 + 2 * 16
    assert block.exchanges == cut
    assert block.attention is not None
    assert block.attention.divided == cut
    # Queries, keys and values, the output of attention and that of the activation function; the logsumexp.
    between = 8 * (48 + 16 + 16) + 8 * 4
    assert block.saved_cut == pytest.approx(between * cut, rel=0.1)
    assert block.saved_cut + block.saved_whole == pytest.approx(between + 8 * (16 + 16 + 2), rel=0.1)
    # The log-softmax of logits by classes.
    assert (last.saved_cut, last.matmuls[0].cut) == (pytest.approx(8 * 32, rel=0.01), "columns")
    assert (graph.first.parameters_cut, graph.first.exchanges) == (32 * 16, 1)


@pytest.mark.parametrize("device", ['"cuda" if torch.cuda.is_available() else "cpu"', '"cuda"'])
def test_a_script_for_a_device_that_is_there_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    text = SMALL.replace('model.to("cpu")', f"device = {device}\nmodel.to(device)")
    text = text.replace("model(x)", "model(x.pin_memory().cuda())").replace(
        "(output, y)", "(output, y.to(device))"
    )
    text = text.replace("LAST", "torch.zeros(1, device=device); torch.cuda.synchronize()")
    script = tmp_path / "on_a_device.py"
    script.write_text(text)
    assert trace_script(str(script), []) == trace_script(written(tmp_path), [])
    assert torch.cuda.is_available()


@pytest.mark.soak
@pytest.mark.parametrize("name", TEN)
def test_ten_scripts_keep_what_is_recorded(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    script = str(SCRIPTS / f"{name}.py")
    fake, real = (trace_script(script, [], real=each) for each in (False, True))
    assert "problem" not in fake
    assert saved(fake) == saved(real) > 0


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("output.detach().numpy()", "output.detach().numpy(): it turns a tensor into a NumPy array"),
        pytest.param(
            *("output[output[:, 0] > 0]", "the size of a result depends on values"), marks=pytest.mark.soak
        ),
    ],
)
def test_what_has_no_data_is_named_with_its_line_and_the_way_out(
    tmp_path: Path, last: str, said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        traced(written(tmp_path, last), [])
    assert f"cannot be traced at train.py:{SMALL[: SMALL.index('LAST')].count(chr(10)) + 1}: {last}" in str(
        refused.value
    )
    assert said in str(refused.value)
    assert "add --real-step, or give its sizes by --model" in str(refused.value)


def test_a_real_step_does_where_data_are_needed(tmp_path: Path) -> None:
    assert traced(written(tmp_path, "output.detach().numpy()"), [], real=True).layers == 3


@pytest.mark.parametrize(
    ("script", "said"),
    [
        pytest.param("print(1)\n", "it calls no model that has parameters", marks=pytest.mark.soak),
        (
            "import torch\nm = torch.nn.Linear(2, 2)\nm(torch.ones(1, 2)).sum().backward()\n",
            "no optimizer step",
        ),
    ],
)
def test_no_model_or_no_step_is_said(tmp_path: Path, script: str, said: str) -> None:
    path = tmp_path / "nothing.py"
    path.write_text(script)
    assert said in trace_script(str(path), [])["problem"]


STRICT = "import argparse\nargparse.ArgumentParser().parse_args()\n"


def test_an_option_behind_the_script_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(STRICT + SMALL.replace("LAST", "pass"))
    with pytest.raises(UsageError) as refused:
        traced(str(path), ["--cluster", "dgx-a100"])
    assert "it ended with exit code 2 (" in str(refused.value)
    assert "unrecognized arguments: --cluster dgx-a100" in str(refused.value)
    assert str(refused.value).endswith("options of ronde go before the script")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("3", "it ended with exit code 3"),
        ("'no data'", "it ended with exit code 1 (no data)"),
        ("0", "it calls no model that has parameters"),
    ],
)
def test_a_script_that_ends_itself_is_said(tmp_path: Path, end: str, said: str) -> None:
    path = tmp_path / "ends.py"
    path.write_text(f"import sys\nsys.exit({end})\n")
    assert trace_script(str(path), [])["problem"] == said


def test_blocks_without_a_model_of_blocks() -> None:
    part = {
        **dict.fromkeys(
            ("attention_flops", "moved", "saved", "masks", "saved_bytes", "results", "routed"), 0.0
        ),
        **dict.fromkeys(("moved_cut", "saved_cut", "masks_cut", "parameters_cut", "keys"), 0.0),
        **dict.fromkeys(("head_size", "kernels", "calls"), 0),
        "products": [],
        "attention_divided": False,
        "parameters": 10.0,
        "parameters_routed": 0.0,
        "tables": 0.0,
        "output": 4.0,
    }
    amounts = {"first": part, "last": part, "blocks": [], "rows": 4, "tokens": 1, "heads": 0, "slots": 1}
    graph = graph_of(
        {**amounts, "itemsize": 4, "experts": 1, "kernels": "eager", "loss_apart": True},
        os.fspath("x.py"),
    )
    assert (graph.layers, graph.parameters) == (0, 20.0)
