"""Conversion of a table's configuration to and from JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from ronde.errors import UsageError
from ronde.server.table import admission, eviction, initial, on_disk, optimizers
from ronde.server.table.config import TableConfig

__all__ = ["read_config", "write_config"]

_KINDS = {
    kind.__name__: kind
    for kind in (
        optimizers.SGD, optimizers.Adagrad, optimizers.RowwiseAdagrad, optimizers.Adam, optimizers.FTRL,
        initial.Zeros, initial.Uniform, initial.Normal,
        admission.AdmitAfter, admission.AdmitWithProbability, admission.AdmitByBloomFilter,
        eviction.EvictByAge, eviction.EvictByNorm, eviction.EvictByFrequency,
        on_disk.OnDisk,
    )
}  # fmt: skip
_PARTS = ("optimizer", "initial", "admit", "evict", "cold")
_OF_ONE_PROCESS = {"directory"}  # each process has its own


def write_config(config: TableConfig) -> dict[str, Any]:
    """Return a JSON object that `read_config` accepts.

    Raises:
        UsageError: a part has a class that other processes do not know.
    """
    told = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name in _PARTS:
        part = told[name]
        if part is None:
            continue
        if _KINDS.get(type(part).__name__) is not type(part):
            raise UsageError(
                f"EmbeddingTable({name}={type(part).__name__}(...)): servers and files know the classes of "
                "ronde.table only [R461]"
            )
        options = dataclasses.asdict(part)
        told[name] = [
            type(part).__name__, {key: options[key] for key in options if key not in _OF_ONE_PROCESS}
        ]  # fmt: skip
    return told


def read_config(told: Any) -> TableConfig:
    """Return the configuration that `write_config` wrote.

    Raises:
        UsageError: the object is malformed or has invalid values.
    """
    try:
        fields = dict(told)
        for name in _PARTS:
            if fields.get(name) is not None:
                kind, options = fields[name]
                # JSON turns tuples into lists; restore them so that equal configs compare equal.
                given: dict[str, Any] = {
                    key: tuple(value) if isinstance(value, list) else value
                    for key, value in options.items()
                    if key not in _OF_ONE_PROCESS
                }
                fields[name] = _KINDS[kind](**given)
        return TableConfig(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the configuration of a table is malformed: {error!r} [R461]") from None
