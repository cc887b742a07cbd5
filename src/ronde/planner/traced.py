"""Traces the cost graph of a script: another process runs it and counts."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
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
    return CostGraph(
        name=Path(name).name,
        batch=rows,
        tokens=max(1, amounts["tokens"]),
        first=_block("first", [amounts["first"]], rows, heads),
        block=_block("block", blocks, rows, heads) if blocks else ModelBlock(name="block"),
        last=_block("last", [amounts["last"]], rows, heads),
        layers=len(blocks),
        heads=heads,
        slots=amounts["slots"],
        experts=amounts["experts"],
        loss_apart=amounts["loss_apart"],
        kernels=amounts["kernels"],
        itemsize=itemsize,
        source=f"traced from {name}",
    )


def _block(name: str, parts: Sequence[Mapping[str, Any]], rows: int, heads: int) -> ModelBlock:
    """Return a block with the mean costs of `parts`, for one sample."""
    count = len(parts) * rows

    def mean(key: str) -> float:
        return sum(part[key] for part in parts) / count

    def own(key: str) -> float:
        return sum(part[key] for part in parts) / len(parts)

    table = own("tables") > 0
    width = max((part["output"] for part in parts), default=0.0) / rows
    matmuls = tuple(_matmuls(parts, count, rows))
    return ModelBlock(
        name=name,
        parameters_cut=own("parameters_cut"),
        parameters_whole=own("parameters") - own("parameters_routed") - own("parameters_cut"),
        parameters_routed=own("parameters_routed"),
        routed=mean("routed"),
        matmuls=matmuls,
        attention=_attention(parts, mean("attention_flops"), mean("keys") or 2 * width, heads),
        moved_cut=mean("moved_cut"),
        moved_whole=mean("moved") - mean("moved_cut"),
        kernels=own("kernels"),
        saved_cut=mean("saved_cut"),
        saved_whole=mean("saved") - mean("saved_cut"),
        masks_cut=mean("masks_cut"),
        masks_whole=mean("masks") - mean("masks_cut"),
        output=width,
        exchanges=1 if table else _exchanges(matmuls, width),
        repeated=name == "block",
        table=table,
        results=mean("results"),
    )


def _exchanges(matmuls: Sequence[Matmul], output: float) -> int:
    """Return the number of all-reduces of the output behind cut products."""
    summed = sum(each.rows * each.n * each.count for each in matmuls if each.cut == "rows")
    return round(summed / output) if output else 0


def _attention(parts: Sequence[Mapping[str, Any]], flops: float, keys: float, heads: int) -> Attention | None:
    if not flops:
        return None
    return Attention(
        flops=flops,
        values=0.0,
        saved=0.0,
        masks=0.0,
        fused=heads > 0,
        head_size=max(part["head_size"] for part in parts),
        keys=keys,
        heads=heads,
        divided=any(part["attention_divided"] for part in parts),
    )


def _matmuls(parts: Sequence[Mapping[str, Any]], count: int, rows: int) -> Sequence[Matmul]:
    """Return the products of all parts, merged by size and cut.

    Products that not every block has count for their share.
    """
    sizes: dict[tuple[int, int, Cut], float] = {}
    numbers: dict[tuple[int, int, Cut], float] = {}
    for part in parts:
        for product in part["products"]:
            key = (product["n"], product["k"], product["cut"])
            sizes[key] = sizes.get(key, 0.0) + product["rows"] * product["count"]
            numbers[key] = numbers.get(key, 0.0) + product["count"]
    found: list[Matmul] = []
    for (n, k, cut), total in sizes.items():
        often = max(1, round(numbers[n, k, cut] * rows / count))
        found.append(Matmul(rows=total / count / often, n=n, k=k, cut=cut, count=often))
    return found
