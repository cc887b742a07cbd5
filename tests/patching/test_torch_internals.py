"""Private names of torch stand in one file, and every torch has them."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from ronde.errors import UsageError
from ronde.patching import torch_internals
from sources import trees

HOME = Path(torch_internals.__file__)
SIGNATURES = {
    "disable_current_modes": [],
    "current_dispatch_modes": [],
    "pop_dispatch_mode": ["k"],
    "current_function_modes": [],
    "pop_function_mode": [],
    "unsafe_preserve_version_counter": ["tensors"],
    "temporarily_clear_interpreter_stack": [],
    "zipfile_writer": ["name"],
}
METHODS = {
    "BaseDataLoaderIter._reset": ["self", "loader", "first_iter"],
    "BaseDataLoaderIter._next_index": ["self"],
    "BaseDataLoaderIter.__next__": ["self"],
    "BaseDataLoaderIter.__init__": ["self", "loader"],
    "MapDatasetFetcher.fetch": ["self", "possibly_batched_index"],
    "IterableDatasetFetcher.fetch": ["self", "possibly_batched_index"],
    "StopRecomputationError.__init__": ["self", "args", "kwargs"],
    "pytree.tree_flatten": ["tree", "is_leaf"],
    "pytree.tree_unflatten": ["leaves", "treespec"],
    "pytree.tree_leaves": ["tree", "is_leaf"],
}


def private(name: str) -> bool:
    """Whether a part of a dotted name of torch begins with one underscore."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def violations(tree: ast.Module) -> Iterator[str]:
    """Private names of torch that a file imports, or reaches from `torch` or from what it imports of it."""
    homes = {"torch": "torch"}
    for node in ast.walk(tree):
        names: dict[str, str] = {}
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("torch."):
            names = {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            names = {each.asname: each.name for each in node.names if each.asname}
            yield from (
                each.name
                for each in node.names
                if f"{each.name}.".startswith("torch.") and private(each.name)
            )
        yield from filter(private, (each for each in names.values() if each.startswith("torch.")))
        homes |= {local: name for local, name in names.items() if name.startswith("torch")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = dotted(node).partition(".")
            if first in homes and private(f"{homes[first]}.{rest}"):
                yield f"{homes[first]}.{rest}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch._C.x()", ["torch._C.x", "torch._C"]),
        ("from torch.utils._pytree import tree_map", ["torch.utils._pytree.tree_map"]),
        ("from torch.utils import data\ndata._utils", ["torch.utils.data._utils"]),
        ("import torch._dynamo", ["torch._dynamo"]),
        ("import torch\ntorch.nn.Module.__call__, module._parameters, torch.__version__", []),
    ],
)
def test_violations_are_found(source: str, found: list[str]) -> None:
    assert list(violations(ast.parse(source))) == found


def test_private_names_of_torch_stand_in_one_file() -> None:
    found = {str(path): sorted(set(violations(tree))) for path, tree in trees().items() if path != HOME}
    assert {path: names for path, names in found.items() if names} == {}


def fresh() -> Any:
    spec = importlib.util.spec_from_file_location("fresh_internals", HOME)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_name_that_is_missing_is_said_once_with_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_foreach_norm")
    with pytest.raises(UsageError, match=r"lacks a name .*'_foreach_norm'.*pip install") as found:
        fresh()
    assert f"torch {torch.__version__} " in str(found.value)


@pytest.mark.parametrize("name", SIGNATURES)
def test_functions_take_what_they_are_given(name: str) -> None:
    assert list(inspect.signature(getattr(torch_internals, name)).parameters) == SIGNATURES[name]


@pytest.mark.parametrize("name", METHODS)
def test_methods_take_what_they_are_given(name: str) -> None:
    owner, _, method = name.partition(".")
    found = list(inspect.signature(getattr(getattr(torch_internals, owner), method)).parameters)
    assert found[: len(METHODS[name])] == METHODS[name]


def test_attention_of_a_block_gives_and_takes_the_logarithms_of_its_sums() -> None:
    q, k, v = (torch.randn(1, 2, tokens, 4, dtype=torch.float64) for tokens in (3, 5, 5))
    out, sums = torch_internals.attention_on_cpu(q, k, v, 0.0, False, attn_mask=None, scale=0.5)
    torch.testing.assert_close(sums, (q @ k.transpose(-2, -1) * 0.5).logsumexp(-1))
    given = torch.ones_like(out), q, k, v, out, sums
    made = torch_internals.attention_on_cpu_backward(*given, 0.0, False, attn_mask=None, scale=0.5)
    assert [each.shape for each in made] == [q.shape, k.shape, v.shape]


def test_functions_in_c_answer() -> None:
    assert torch_internals.current_graph_task_id() == -1
    assert torch_internals.forward_ad_level() == -1
    assert torch_internals.count_dispatch_modes() == 0
    assert torch_internals.peek_interpreter_stack() is None
    assert torch_internals.get_tracing_state() is None
    assert torch_internals.saved_tensor_hooks._top_saved_tensors_default_hooks(True) is None
    assert torch_internals.safe_softmax(torch.full((1, 2), -torch.inf), -1).tolist() == [[0.0, 0.0]]
    assert torch_internals.storage_use_count(torch.ones(1).untyped_storage()._cdata) >= 1


def test_gloo_takes_its_options() -> None:
    gloo, store = torch.distributed.ProcessGroupGloo, torch.distributed.HashStore()
    options = torch_internals.gloo_options(gloo.create_default_device(), timedelta(seconds=30), threads=2)
    group = gloo(store, 0, 1, options)
    group.set_timeout(timedelta(seconds=20))
    out = torch.empty(2)
    torch_internals.all_gather_single(group, out, torch.ones(2)).wait()
    assert out.tolist() == [1, 1]
    torch_internals.all_to_all_single(group, out, torch.zeros(2), [2], [2]).wait()
    assert out.tolist() == [0, 0]


def test_what_is_loaded_late_is_there() -> None:
    assert torch_internals.device_constructors()
    torch_internals.skip_code((lambda: None).__code__)


def test_a_loaders_iterator_has_what_slices_read() -> None:
    iterator = iter(DataLoader([1, 2], batch_size=2))
    names = ("_dataset_kind", "_collate_fn", "_auto_collation", "_num_workers")
    assert [name for name in names if not hasattr(iterator, name)] == []
    assert isinstance(iterator, torch_internals.BaseDataLoaderIter)


def test_an_autograd_node_of_a_function_has_what_is_read() -> None:
    given = torch.ones(1, requires_grad=True)
    output: Any = torch.utils.checkpoint.checkpoint(torch.sin, given, use_reentrant=True)
    assert isinstance(output.grad_fn, torch_internals.FunctionBase)
    assert hasattr(output.grad_fn, "_forward_cls")
    assert (output * 2).grad_fn._sequence_nr() >= 0
