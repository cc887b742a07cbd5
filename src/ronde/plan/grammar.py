"""Grammar of plans: items from a string or a TOML file, and their values.

    plan  = item {"," item}
    item  = preset | key "=" value

A bare word is a preset, never a value. A later key wins over a preset's value; two different
explicit values of one key are an error, and so is a preset that would undo an earlier item, a preset too.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ronde.errors import PlanError
from ronde.plan.alias import KEY_ALIASES, SEVERAL_MEANINGS, alias_of, plain
from ronde.plan.axes import AXES, KEYS, axis_of
from ronde.plan.key import Choice, Key, did_you_mean
from ronde.plan.preset import PRESETS

__all__ = ["Item", "aliases_in", "items_of_source", "items_of_table", "items_of_text", "settle"]


# A separate TOML table, because its keys are patterns.
_CUTS = "tensor-cuts"
# Separators that people write between items; no item contains one.
_OTHER_MARK = re.compile(r"[\s;]+")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """Item of a plan: a key with its value, or a preset.

    A preset has an empty `text`.
    """

    name: str
    text: str | None = None

    def __str__(self) -> str:
        return self.name if self.text is None else f"{self.name}={self.text}"


def aliases_in(*sources: str) -> tuple[str, ...]:
    """Explain the aliases from other systems that a plan uses.

    >>> aliases_in("fsdp,tp=2,precision=bf16")
    ('fsdp is zero3', 'tp=2 is tensor=2')
    """
    items = [item for source in sources for item in items_of_source(source)]
    meant = [(item, alias_of(item.name, item.text)) for item in items if not _is_known(item.name, item.text)]
    return tuple(f"{item} is {meaning}" for item, meaning in meant if meaning is not None)


def items_of_source(source: str) -> tuple[Item, ...]:
    """Return the items of a plan given as a string or `.toml` path."""
    return _items_of_file(Path(source)) if source.endswith(".toml") else items_of_text(source)


def items_of_text(text: str) -> tuple[Item, ...]:
    """Parse a plan string such as `zero3,precision=bf16` into items."""
    return tuple(_item(piece.strip(), text) for piece in text.split(","))


def items_of_table(table: Mapping[str, Any]) -> tuple[Item, ...]:
    """Parse a TOML document into items.

    `preset` holds one name or a list of names and goes first, since a table has no order. A key
    stands by itself (`precision = "bf16"`) or in the table of its axis (`[compute]`).
    """
    presets = table.get("preset", [])
    names = [presets] if isinstance(presets, str) else presets
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PlanError(
            f'preset = {presets!r} is not a preset; write preset = "ddp" or a list of such names [R216]'
        )
    return tuple(Item(name=name) for name in names) + tuple(_items_of_keys(table))


def settle(items: Iterable[Item]) -> dict[str, object]:
    """Return the value of every key that the items set.

    Raises one `PlanError` with all errors.
    """
    explicit: dict[str, object] = {}
    from_preset: dict[str, object] = {}
    set_by: dict[str, str] = {}
    errors: list[str] = []
    for item in (own for given in items for own in _in_own_words(given)):
        try:
            if item.text is None:
                values = _preset_values(item.name, explicit)
                _check_presets(item.name, values, from_preset, set_by)
                from_preset |= values
                set_by |= dict.fromkeys(values, item.name)
            else:
                value = _known_key(item.name).read(item.text)
                if explicit.setdefault(item.name, value) != value:
                    raise PlanError(_twice(item.name, explicit[item.name], value))
        except PlanError as error:
            errors.append(str(error))
    if errors:
        raise PlanError("; ".join(errors))
    return from_preset | explicit


def _is_known(name: str, text: str | None) -> bool:
    return name in (PRESETS if text is None else KEYS)


def _in_own_words(item: Item) -> tuple[Item, ...]:
    """Translate an item with another system's name or spelling into this grammar."""
    if _is_known(item.name, item.text):
        return (item,)
    if _is_known(plain(item.name), item.text):
        return (dataclasses.replace(item, name=plain(item.name)),)
    meaning = alias_of(item.name, item.text)
    return (item,) if meaning is None else items_of_text(meaning)


def _item(piece: str, whole: str) -> Item:
    name, sign, text = (part.strip() for part in piece.partition("="))
    if not name or (sign and not text):
        raise PlanError(
            f"plan {whole!r} has an incomplete item {piece!r}; an item is a preset or key=value [R214]"
        )
    if _OTHER_MARK.search(name + text):
        items = _OTHER_MARK.sub(",", re.sub(r"\s*=\s*", "=", piece).strip("; "))
        raise PlanError(
            f"items of a plan are separated by commas; write {items} in place of {piece!r} [R214]"
        )
    return Item(name=name, text=text if sign else None)


def _items_of_file(path: Path) -> tuple[Item, ...]:
    if sys.version_info >= (3, 11):  # imported here, since few runs read a plan from a file
        import tomllib
    else:
        import tomli as tomllib  # pyright: ignore[reportMissingImports]
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(
            f"plan file {path} cannot be read: {error.strerror}; give a TOML file [R216]"
        ) from error
    except ValueError as error:
        raise PlanError(f"plan file {path} is not TOML: {error} [R216]") from error
    return items_of_table(document)


def _items_of_keys(table: Mapping[str, Any]) -> Iterator[Item]:
    for name, value in table.items():
        if name == "preset":
            continue
        if name == _CUTS and isinstance(value, dict):
            yield Item(name=name, text="+".join(f"{pattern}:{way}" for pattern, way in value.items()))
            continue
        if not isinstance(value, dict):
            yield Item(name=name, text=_text_of(name, value))
            continue
        if name not in AXES:
            raise PlanError(
                f"[{name}] is not an axis{did_you_mean(name, AXES)}; there are {', '.join(AXES)} [R216]"
            )
        for key_name, inner in value.items():
            if axis_of(_known_key(key_name).name) != name:
                raise PlanError(
                    f"{key_name} is not a key of [{name}]; it belongs in [{axis_of(key_name)}] [R216]"
                )
            yield Item(name=key_name, text=_text_of(key_name, inner))


def _text_of(name: str, value: object) -> str:
    """Spell a TOML value in the grammar."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise PlanError(f"{name} = {value!r} is not a plan value; write a string, a number, true or false [R216]")


def _known_key(name: str) -> Key:
    if name in KEYS:
        return KEYS[name]
    if name in PRESETS:
        raise PlanError(f"{name} is a preset, not a key; write it as a bare word [R214]")
    if plain(name) in SEVERAL_MEANINGS:
        raise PlanError(_several_meanings(name))
    raise PlanError(
        f"unknown key {name!r} in a plan{did_you_mean(name, KEYS)}; keys are {', '.join(KEYS)} [R214]"
    )


def _preset_values(name: str, explicit: Mapping[str, object]) -> dict[str, object]:
    """Return the values that a preset sets.

    Raises `PlanError` where the preset would undo an item that stands before it.
    """
    if name not in PRESETS:
        raise PlanError(_unknown_preset(name))
    values: dict[str, object] = {}
    for item in items_of_text(PRESETS[name].items):
        key = KEYS[item.name]
        values[item.name] = key.read(str(item.text))
        if explicit.get(item.name, values[item.name]) != values[item.name]:
            before = key.write(explicit[item.name])
            raise PlanError(
                f"preset {name} sets {item.name}={item.text}, but {before} stands before it; "
                "write the preset first, or leave one of them out [R210]"
            )
    return values


def _check_presets(
    name: str, values: Mapping[str, object], earlier: Mapping[str, object], set_by: Mapping[str, str]
) -> None:
    """Raise `PlanError` if a preset contradicts an earlier preset."""
    for key, value in values.items():
        if earlier.get(key, value) != value:
            first, second = KEYS[key].write(earlier[key]), KEYS[key].write(value)
            raise PlanError(
                f"preset {set_by[key]} sets {first} and preset {name} sets {second}; keep one of them [R210]"
            )


def _unknown_preset(name: str) -> str:
    if plain(name) in KEY_ALIASES:
        return f"{name} is {KEY_ALIASES[plain(name)]}=N here; write how many ways it cuts [R215]"
    if plain(name) in SEVERAL_MEANINGS:
        return _several_meanings(name)
    if name in KEYS:
        return f"{name} is a key, not a preset; write {name}=VALUE ({KEYS[name].kind.expected}) [R214]"
    takers = [key.name for key in KEYS.values() if isinstance(key.kind, Choice) and name in key.kind.words]
    if takers:
        return (
            f"{name} is a value, not a preset; write "
            f"{' or '.join(f'{taker}={name}' for taker in takers)} [R214]"
        )
    return f"unknown preset {name!r}{did_you_mean(name, PRESETS)}; presets are {', '.join(PRESETS)} [R214]"


def _several_meanings(name: str) -> str:
    return f"{name} has several plans here; write {SEVERAL_MEANINGS[plain(name)]} [R215]"


def _twice(name: str, first: object, second: object) -> str:
    key = KEYS[name]
    return f"{key.write(first)} and {key.write(second)} contradict each other; keep one of them [R210]"
