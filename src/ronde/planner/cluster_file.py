"""Reads a cluster from a TOML file or a preset, with hints on mistakes."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ronde.errors import UsageError
from ronde.plan.key import did_you_mean
from ronde.planner.cluster import Cluster, Group, Reliability
from ronde.planner.device import Device
from ronde.planner.link import Constants, Link

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

__all__ = ["PRESETS", "THIS_HOST", "parse_cluster", "preset_text", "read_cluster"]

_FOLDER = Path(__file__).parent / "clusters"
PRESETS = tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))
"""Clusters that come with ronde."""
THIS_HOST = "this-host"
"""The name of a cluster that is measured on demand."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Field:
    """A number in the file: bounds, hints on values beyond them, and a default.

    Without a default (None) the number is required.

    Attributes:
        whole: whether it must be a whole number.
    """

    low: float
    high: float
    small: str = "check the unit"
    large: str = "check the unit"
    default: float | None = None
    whole: bool = False


_GROUP = {
    "nodes": _Field(low=1, high=1e6, whole=True),
    "devices": _Field(low=1, high=1024, whole=True),
    "memory-gib": _Field(
        low=0.05, high=2048, small="give GiB", large="if these are MiB, divide by 1024; give GiB"
    ),
    "bandwidth-gb-s": _Field(
        low=0.5, high=30_000, small="if these are TB/s, multiply by 1000", large="give GB/s"
    ),
    "gemm-floor-us": _Field(low=0, high=10_000, large="give microseconds"),
    "gemm-efficiency": _Field(low=0.01, high=1.5, large="a share is at most about 1; divide per cent by 100"),
    "gemm-bandwidth": _Field(low=0.01, high=20),
    "attention-efficiency": _Field(
        low=0.005, high=1.5, large="a share is at most about 1; divide per cent by 100"
    ),
    "copy-efficiency": _Field(low=0.01, high=1.5, large="a share is at most about 1; divide per cent by 100"),
    "launch-us": _Field(low=0, high=10_000, large="give microseconds"),
    "sustained": _Field(
        low=0.05, high=1.5, large="a share is at most about 1; divide per cent by 100", default=1.0
    ),
    "host-us": _Field(low=0, high=10_000, large="give microseconds", default=0.0),
}
_PEAK = _Field(
    low=1e-3, high=20_000, small="if these are PFLOPS, multiply by 1000", large="give TFLOPS, dense"
)
_NODE = {
    "bandwidth-gb-s": _Field(
        low=0.05, high=4000, small="give GB/s", large="if these are Gbit/s, divide by 8; give GB/s"
    ),
    "alpha-us": _Field(low=0, high=100_000, large="give microseconds"),
    "gamma-ns": _Field(low=0, high=1e6, default=0.0),
}
_NETWORK = {
    "bandwidth-gbit-s": _Field(
        low=0.5,
        high=1600,
        small="if these are GB/s, multiply by 8; give Gbit/s of one card",
        large="give Gbit/s of one card, and the number of cards as nics",
    ),
    "nics": _Field(low=1, high=64, whole=True),
    "alpha-us": _Field(low=0, high=100_000, large="give microseconds"),
    "gamma-ns": _Field(low=0, high=1e6, default=0.0),
    "straggle-ms": _Field(low=0, high=10_000, large="give milliseconds", default=0.0),
}
_TOP = {
    "loader-samples-s": _Field(low=1e-3, high=1e9, default=math.inf),
    "reserved-factor": _Field(
        low=1, high=3, small="what is reserved is at least what is allocated", default=1.1
    ),
    "context-gib": _Field(low=0, high=64, default=0.0),
    "uncertainty": _Field(low=0, high=2, default=0.15),
    "fitted-rows-from": _Field(low=1, high=1e12, default=1.0),
    "fitted-rows-to": _Field(low=1, high=1e12, default=math.inf),
    "price-per-hour": _Field(low=1e-6, high=1e6, default=math.inf),
    "node-mtbf-hours": _Field(
        low=0.1, high=1e8, large="give hours between failures of one node", default=math.inf
    ),
    "restart-s": _Field(low=0, high=1e6, large="give seconds", default=300.0),
    "checkpoint-gb-s": _Field(
        low=1e-3, high=10_000, small="give GB/s", large="give GB/s of one node", default=math.inf
    ),
}
_MEASURED = {**_NODE, "ranks": _Field(low=2, high=1e6, whole=True)}
_DTYPES = ("bf16", "fp16", "tf32", "fp32")
# Tables of which a file that names a preset may have a part.
_MERGED = ("node", "network", "sources")
_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")


def preset_text(name: str) -> str:
    """Return the TOML text of a preset."""
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def read_cluster(source: str) -> Cluster:
    """Read the cluster of a preset's name or a `.toml` file.

    Raises:
        UsageError: the name is unknown, the file cannot be read, or it has mistakes; all are listed.
    """
    if not source.endswith(".toml"):
        if source not in PRESETS:
            known = (*PRESETS, THIS_HOST)
            raise UsageError(
                f"--cluster {source} is not a preset{did_you_mean(source, known)}; give one of "
                f"{', '.join(known)}, or a .toml file [R800]"
            )
        return parse_cluster(preset_text(source), source)
    try:
        text = Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot read --cluster {source}: {error.strerror}; give a preset or a .toml file [R800]"
        ) from None
    except UnicodeDecodeError as error:
        raise _no_toml(source, error) from None
    return parse_cluster(text, source)


def parse_cluster(text: str, source: str) -> Cluster:
    """Parse a cluster from TOML. `source` is the name of the text in messages."""
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _no_toml(source, error) from None
    wrong = list(_preset_mistakes(fields))
    if not wrong:
        fields = _over_preset(fields)
        wrong = list(_mistakes(fields))
    if wrong:
        raise UsageError(f"{source}: {'; '.join(wrong)} [R802]")
    return _cluster(fields)


def _preset_mistakes(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield mistakes of the keys that build on a preset."""
    if "preset" not in fields:
        return
    name = fields["preset"]
    if name not in PRESETS:
        yield f"preset is {name!r}{did_you_mean(str(name), PRESETS)}: give one of {', '.join(PRESETS)}"
    if "nodes" in fields:
        yield from _number("nodes", fields["nodes"], _GROUP["nodes"])
        if "groups" in fields:
            yield "nodes stands beside [[groups]], which has its own: leave one of them out"
    for table in _MERGED:
        if not isinstance(fields.get(table, {}), dict):
            yield _no_table(table, fields[table], f"[{table}]")


def _over_preset(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a file over the fields of its preset."""
    own = {key: value for key, value in fields.items() if key not in ("preset", "nodes")}
    if "preset" not in fields:
        return dict(fields)
    usual = tomllib.loads(preset_text(fields["preset"]))
    if "nodes" in fields:
        usual["groups"] = [{**usual["groups"][0], "nodes": fields["nodes"]}]
    if "node" in own:
        # Rows that were measured over the preset's link would hide the file's constants.
        usual.pop("measured", None)
    tables = {key: {**usual.get(key, {}), **own[key]} for key in _MERGED if key in own}
    return {**usual, **own, **tables}


def _no_toml(source: str, error: ValueError) -> UsageError:
    return UsageError(f"{source} is not TOML: {error}; see docs/guides/finding-a-plan.md for the form [R802]")


def _mistakes(fields: Mapping[str, Any]) -> Iterator[str]:
    known = (*_TOP, "name", "preset", "backend", "groups", "node", "network", "measured", "sources")
    yield from _unknown(fields, known, "")
    yield from _numbers(fields, _TOP, "")
    if fields.get("backend", "nccl") not in ("nccl", "gloo"):
        yield f"backend is {fields['backend']!r}: give nccl or gloo"
    groups = fields.get("groups", [])
    if not groups or not isinstance(groups, list):
        yield "groups is missing: add [[groups]] with nodes, devices and the device's constants, or a preset"
        groups = []
    for place, group in enumerate(groups):
        where = f"groups[{place}]."
        if not isinstance(group, dict):
            yield _no_table(f"groups[{place}]", group, "[[groups]]")
            continue
        yield from _unknown(group, (*_GROUP, "device", "peak-tflops"), where)
        yield from _numbers(group, _GROUP, where)
        yield from _peaks(group, where)
    for name, table in (("node", _NODE), ("network", _NETWORK)):
        if name not in fields:
            yield f"{name} is missing: add [{name}] with {', '.join(table)}"
            continue
        if not isinstance(fields[name], dict):
            yield _no_table(name, fields[name], f"[{name}]")
            continue
        yield from _unknown(fields[name], tuple(table), f"{name}.")
        yield from _numbers(fields[name], table, f"{name}.")
    if not isinstance(fields.get("sources", {}), dict):
        yield _no_table("sources", fields["sources"], "[sources]")
    measured = fields.get("measured", [])
    for place, row in enumerate(measured if isinstance(measured, list) else [measured]):
        if not isinstance(row, dict):
            yield _no_table(f"measured[{place}]", row, "[[measured]]")
            continue
        yield from _unknown(row, (*_MEASURED, "operation"), f"measured[{place}].")
        yield from _numbers(row, _MEASURED, f"measured[{place}].")
        if row.get("operation") not in _OPERATIONS:
            hint = did_you_mean(str(row.get("operation")), _OPERATIONS)
            known = ", ".join(_OPERATIONS)
            yield f"measured[{place}].operation is {row.get('operation')!r}{hint}: give one of {known}"


def _no_table(name: str, value: object, heading: str) -> str:
    return f"{name} is {value!r}: give a table, under {heading}"


def _unknown(fields: Mapping[str, Any], known: tuple[str, ...], where: str) -> Iterator[str]:
    for key in fields:
        if key not in known:
            yield f"{where}{key} is not a key{did_you_mean(key, known)}: there are {', '.join(known)}"


def _numbers(fields: Mapping[str, Any], table: Mapping[str, _Field], where: str) -> Iterator[str]:
    for key, field in table.items():
        if key in fields:
            yield from _number(f"{where}{key}", fields[key], field)
        elif field.default is None:
            yield f"{where}{key} is missing: give a number from {field.low:g} to {field.high:g}"


def _number(name: str, value: Any, field: _Field) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        yield f"{name} is {value!r}: give a number"
    elif field.whole and value != int(value):
        yield f"{name} is {value:g}: give a whole number"
    elif value < 0:
        yield f"{name} is {value:g}, and cannot be negative: leave out the minus"
    elif value < field.low:
        yield f"{name} is {value:g}, less than any known ({field.low:g}): {field.small}"
    elif value > field.high:
        yield f"{name} is {value:g}, more than any known ({field.high:g}): {field.large}"


def _peaks(group: Mapping[str, Any], where: str) -> Iterator[str]:
    peaks = group.get("peak-tflops")
    if not isinstance(peaks, dict) or "fp32" not in peaks:
        yield f"{where}peak-tflops is missing: give a table with fp32 at least, as {{ fp32 = 19.5 }}"
        return
    yield from _unknown(peaks, _DTYPES, f"{where}peak-tflops.")
    for key in _DTYPES:
        if key in peaks:
            yield from _number(f"{where}peak-tflops.{key}", peaks[key], _PEAK)


def _get(fields: Mapping[str, Any], table: Mapping[str, _Field], key: str) -> float:
    default = table[key].default
    return float(fields[key]) if key in fields else float(default if default is not None else math.nan)


def _known(fields: Mapping[str, Any], key: str) -> float | None:
    """Return a number of the whole file; None where it is left out."""
    found = _get(fields, _TOP, key)
    return found if math.isfinite(found) else None


def _cluster(fields: Mapping[str, Any]) -> Cluster:
    node, network = fields["node"], fields["network"]
    measured = {
        (row["operation"], int(row["ranks"])): _constants(row, row["bandwidth-gb-s"] * 1e9)
        for row in fields.get("measured", [])
    }
    storage, between = (_known(fields, key) for key in ("checkpoint-gb-s", "node-mtbf-hours"))
    return Cluster(
        price=_known(fields, "price-per-hour"),
        reliability=Reliability(
            between=None if between is None else between * 3600,
            restart=_get(fields, _TOP, "restart-s"),
            storage=None if storage is None else storage * 1e9,
        ),
        name=str(fields.get("name", "cluster")),
        groups=tuple(map(_group, fields["groups"])),
        node=Link(usual=_constants(node, node["bandwidth-gb-s"] * 1e9), measured=measured),
        network=Link(
            usual=_constants(network, network["bandwidth-gbit-s"] * 1e9 / 8),
            nics=int(network["nics"]),
            straggle=_get(network, _NETWORK, "straggle-ms") * 1e-3,
        ),
        loader=_known(fields, "loader-samples-s"),
        reserved=_get(fields, _TOP, "reserved-factor"),
        context=_get(fields, _TOP, "context-gib") * 2**30,
        backend=str(fields.get("backend", "nccl")),
        sources={str(key): str(value) for key, value in fields.get("sources", {}).items()},
        uncertainty=_get(fields, _TOP, "uncertainty"),
        batches=(_get(fields, _TOP, "fitted-rows-from"), _get(fields, _TOP, "fitted-rows-to")),
    )


def _constants(fields: Mapping[str, Any], beta: float) -> Constants:
    return Constants(alpha=fields["alpha-us"] * 1e-6, beta=beta, gamma=fields.get("gamma-ns", 0.0) * 1e-9)


def _group(fields: Mapping[str, Any]) -> Group:
    device = Device(
        name=str(fields.get("device", "device")),
        memory=fields["memory-gib"] * 2**30,
        peak={key: value * 1e12 for key, value in fields["peak-tflops"].items()},
        bandwidth=fields["bandwidth-gb-s"] * 1e9,
        gemm_floor=fields["gemm-floor-us"] * 1e-6,
        gemm_efficiency=fields["gemm-efficiency"],
        gemm_bandwidth=fields["gemm-bandwidth"],
        attention_efficiency=fields["attention-efficiency"],
        copy_efficiency=fields["copy-efficiency"],
        launch=fields["launch-us"] * 1e-6,
        sustained=_get(fields, _GROUP, "sustained"),
        host=_get(fields, _GROUP, "host-us") * 1e-6,
    )
    return Group(nodes=int(fields["nodes"]), devices=int(fields["devices"]), device=device)
