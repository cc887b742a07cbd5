"""`%%ronde` in a real kernel."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator

import psutil
import pytest

client = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

Outputs = list[tuple[str, str]]


@pytest.fixture(scope="module")
def kernel() -> Iterator[Callable[..., Outputs]]:
    """`kernel(code)`: the cell's outputs; `interrupt_at` stops it when these words appear."""
    manager, channels = client.start_new_kernel()

    def execute(code: str, interrupt_at: str = "") -> Outputs:
        sent, found, waits = (
            channels.execute(textwrap.dedent(code)),
            list[tuple[str, str]](),
            bool(interrupt_at),
        )
        while True:
            message = channels.get_iopub_msg(timeout=110)
            content = message["content"]
            if message["parent_header"].get("msg_id") != sent:
                continue
            if message["msg_type"] == "stream":
                found.append((content["name"], content["text"]))
            elif message["msg_type"] == "error":
                found.append((content["ename"], "\n".join(content["traceback"])))
            elif content.get("execution_state") == "idle":
                return found
            if waits and any(interrupt_at in text for _, text in found):
                waits = False
                manager.interrupt_kernel()

    assert execute("%load_ext ronde") == []
    yield execute
    channels.stop_channels()
    manager.shutdown_kernel(now=True)


def told(outputs: Outputs, name: str) -> str:
    return "".join(text for each, text in outputs if each == name)


def children() -> list[str]:
    """Processes below the kernels of this process."""
    return [each.name() for kernel in psutil.Process().children() for each in kernel.children(recursive=True)]


def test_mistakes_are_one_line(kernel: Callable[..., Outputs]) -> None:
    ((kind, text),) = kernel("%%ronde --rankz 2\nx = 1")
    assert (kind, text.partition(" (")[0]) == ("UsageError", "ronde: error[R177]: no such option: --rankz")
    ((kind, text),) = kernel("%%ronde --ranks 2 --plan zero9\nx = 1")
    assert (kind, text.partition(" (")[0]) == ("PlanError", "ronde: error[R214]: unknown preset 'zero9'")
    ((kind, text),) = kernel("%%ronde --ranks 2\nx = (1\n")
    assert kind == "UsageError"
    place, line = text.splitlines()[:2]
    assert re.fullmatch(r'  File "Cell In\[\d+\]", line 2', place)
    assert line == "    x = (1"
    kernel("f = (line for line in 'ab')")
    ((kind, text),) = kernel("%%ronde --ranks 2\nnext(f)")
    assert text.startswith("ronde: error[R171]: the cell reads what cannot be sent to the ranks: f (")


@pytest.mark.soak
def test_cells_share_variables_fail_and_are_interrupted(kernel: Callable[..., Outputs]) -> None:
    seen = kernel(
        """\
        %%ronde --ranks 2
        import ronde
        print("ranks", ronde.world_size())
        def double(v):
            return 2 * v
        lines = (line for line in "ab")
        a = double(4)
        """
    )
    first, note = told(seen, "stdout").splitlines()
    assert first == "ranks 2"
    assert note.startswith("ronde: note[R188]: lines does not come back from the ranks: ")
    assert told(kernel("print(a, double(5))"), "stdout") == "8 10\n"
    assert "12\n" in told(kernel("%%ronde --ranks 2\na + double(2)"), "stdout")

    seen = kernel("%%ronde --ranks 2\ndef boom(k):\n    return 1 / k\nboom(0)")
    assert '  File "Cell In[' in told(seen, "stderr")
    assert '", line 4, in <module>\n    boom(0)\n' in told(seen, "stderr")
    assert "ronde: rank 0 failed (so did 1 more), its traceback is above" in told(seen, "stderr")
    assert told(seen, "FunctionError") == "FunctionError: rank 0 failed: ZeroDivisionError: division by zero"
    assert "site-packages" not in told(seen, "stderr")

    seen = kernel("%%ronde --ranks 2\nprint('looping', flush=True)\nwhile True: pass", interrupt_at="looping")
    assert told(seen, "KeyboardInterrupt") == "KeyboardInterrupt: the 2 ranks have ended"
    assert "    while True: pass\nKeyboardInterrupt" in told(seen, "stderr")
    assert children() == []

    seen = kernel("import ronde\nronde.launch(boom, (0,), ranks=1)")
    assert "NameError" in told(seen, "NameError")  # the failed cell brought nothing back
    kernel("def boom(k):\n    return 1 / k")
    seen = kernel("ronde.launch(boom, (0,), ranks=1)")
    assert told(seen, "FunctionError") == "FunctionError: rank 0 failed: ZeroDivisionError: division by zero"
    assert "line 2, in boom\n    return 1 / k\n" in told(seen, "stderr")


TRAINING = """
import torch
from torch import nn
torch.set_default_dtype(torch.float64)
torch.manual_seed(3)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.2)
    def forward(self, x):
        return self.c(self.drop(torch.relu(self.b(torch.relu(self.a(x))))))
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
def make():
    global model, optimizer, scheduler, alias
    torch.manual_seed(7)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler, alias = torch.optim.lr_scheduler.StepLR(optimizer, 1), [model]
def goes_on():
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(alias[0](x), y).backward()
        optimizer.step()
    scheduler.step()
    weights = sum(float(p.detach().abs().sum()) for p in model.parameters())
    came = [loss.item(), out.detach().sum().item(), other.a.weight.detach().sum().item()]
    return [*came, weights, torch.rand(1).item(), optimizer.param_groups[0]["lr"]]
cell = '''
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
other = Net()
'''
make(); exec(cell); want = goes_on()
"""


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["ddp", "zero2", "zero3", "tensor=2", "pipeline=2,micro-batches=2"])
def test_a_trained_model_comes_back_whole_and_trains_on(kernel: Callable[..., Outputs], plan: str) -> None:
    kernel(TRAINING)
    seen = kernel(
        f"""\
        make()
        get_ipython().run_cell_magic("ronde", "--ranks 2 --quiet --plan {plan}", cell)
        got = goes_on()
        print(max(abs(a - b) for a, b in zip(want, got)) < 1e-9, out.requires_grad, out.shape)
        print(alias[0] is model, scheduler.optimizer is optimizer, loader.dataset is data)
        print({{type(p).__name__ for p in model.parameters()}})
        """
    )
    assert told(seen, "stdout").splitlines() == [
        "True False torch.Size([16, 4])",
        "True True True",
        "{'Parameter'}",
    ], seen
