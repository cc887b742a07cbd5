"""Traces the cost graph of a script: another process runs it and counts."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ronde.errors import UsageError
from ronde.planner.graph import Attention, CostGraph, Cut, Matmul, ModelBlock

__all__ = ["graph_of", "traced"]

_TIMEOUT = 600


def traced(script: str, arguments: Sequence[str], *, real: bool = False) -> CostGraph:
    """Run the script until its second optimizer step, on tensors without data unless `real`.

    Raises:
        UsageError: the script cannot run so, calls no model, or makes no step; the message has line and fix.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "costs.json"
        kind = "real" if real else "fake"
        command = [sys.executable, "-m", "ronde.runtime.costs", kind, str(out), script, *arguments]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"{script} has made no second optimizer step in {_TIMEOUT} s; give its sizes by "
                "--model [R810]"
            ) from None
        if not out.exists():
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise UsageError(
                f"{script} ended its interpreter while it was traced ({last or done.returncode}); give its "
                "sizes by --model [R810]"
            )
        amounts = json.loads(out.read_text())
    if "problem" in amounts:
        raise UsageError(_refusal(script, amounts, real))
    return graph_of(amounts, script)


def _refusal(script: str, amounts: Mapping[str, str], real: bool) -> str:
    where = f" at {amounts['line']}" if amounts["line"] else ""
    way = "correct the script" if real else "add --real-step, or give its sizes by --model"
    if "unrecognized arguments" in amounts["problem"]:
        way = "options of ronde go before the script"
    return f"{script} cannot be traced{where}: {amounts['problem']}; {way}"


def graph_of(amounts: Mapping[str, Any], name: str) -> CostGraph:
    """Return the graph of counted amounts.

    Blocks that differ are replaced by as many equal ones of their mean.
    """
    rows = max(1, amounts["rows"])
    blocks = amounts["blocks"]
    heads = amounts["heads"]
    itemsize = amounts["itemsize"]
    tables = {(n, k) for n, k in amounts["tables"]} if heads else set[tuple[int, int]]()
    return CostGraph(
        name=Path(name).name,
        batch=rows,
        tokens=max(1, amounts["tokens"]),
        first=_block("first", [amounts["first"]], rows, heads, tables),
        block=_block("block", blocks, rows, heads, tables) if blocks else ModelBlock(name="block"),
        last=_block("last", [amounts["last"]], rows, heads, tables),
        layers=len(blocks),
        heads=heads,
        slots=amounts["slots"],
        experts=amounts["experts"],
        loss_apart=amounts["loss_apart"],
        kernels=amounts["kernels"],
        itemsize=itemsize,
        source=f"traced from {name}",
    )


def _block(
    name: str,
    parts: Sequence[Mapping[str, Any]],
    rows: int,
    heads: int,
    tables: Collection[tuple[int, int]],
) -> ModelBlock:
    """Return a block with the mean costs of `parts`, for one sample."""
    count = len(parts) * rows
    attended = any(part["attention_flops"] for part in parts)
    divided = heads > 0 and name == "block"

    def mean(key: str) -> float:
        return sum(part[key] for part in parts) / count

    cut = mean("cut") if divided or tables else 0.0
    table = sum(part["tables"] for part in parts) / len(parts) if tables else 0.0
    width = max((part["output"] for part in parts), default=0.0)
    matmuls = tuple(_matmuls(parts, count, rows, divided, () if name == "block" else tables))
    weights = sum(each.n * each.k * each.count for each in matmuls if each.cut != "whole")
    own, experts = (
        sum(part[key] for part in parts) / len(parts) for key in ("parameters", "parameters_routed")
    )
    parameters = own - experts
    attention = None
    if attended:
        attention = Attention(
            flops=mean("attention_flops"),
            values=0.0,
            saved=0.0,
            masks=0.0,
            fused=heads > 0,
            head_size=max(part["head_size"] for part in parts),
            keys=2 * width / rows,
            heads=heads,
        )
    return ModelBlock(
        name=name,
        parameters_cut=min(parameters, weights + table),
        parameters_whole=max(0.0, parameters - weights - table),
        parameters_routed=experts,
        routed=mean("routed"),
        matmuls=matmuls,
        attention=attention,
        moved_whole=mean("moved"),
        kernels=sum(part["kernels"] for part in parts) / len(parts),
        saved_cut=cut,
        saved_whole=max(0.0, mean("saved") - cut),
        masks_whole=mean("masks"),
        output=width / rows,
        exchanges=2 if divided else 1 if name == "block" or table else 0,
        table=table > 0,
        results=mean("results"),
    )


def _matmuls(
    parts: Sequence[Mapping[str, Any]],
    count: int,
    rows: int,
    divided: bool,
    tables: Collection[tuple[int, int]],
) -> Sequence[Matmul]:
    """Return the products of all parts, merged by size.

    Products that not every block has count for their share. A product with a matrix of a table's shape, the
    head of a language model, is cut by columns.
    """
    sizes: dict[tuple[int, int, Cut], float] = {}
    numbers: dict[tuple[int, int, Cut], float] = {}
    for part in parts:
        for product in part["products"]:
            size = (product["n"], product["k"])
            cut: Cut = _cut(product) if divided else "columns" if size in tables else "whole"
            key = (*size, cut)
            sizes[key] = sizes.get(key, 0.0) + product["rows"] * product["count"]
            numbers[key] = numbers.get(key, 0.0) + product["count"]
    found: list[Matmul] = []
    for (n, k, cut), total in sizes.items():
        often = max(1, round(numbers[n, k, cut] * rows / count))
        found.append(Matmul(rows=total / count / often, n=n, k=k, cut=cut, count=often))
    return found


def _cut(product: Mapping[str, Any]) -> Cut:
    """Return Megatron's cut: columns for widening products, rows for narrowing ones.

    A square product is cut by rows after attention, else by columns.
    """
    if product["n"] == product["k"]:
        return "rows" if product["after"] else "columns"
    return "columns" if product["n"] > product["k"] else "rows"
