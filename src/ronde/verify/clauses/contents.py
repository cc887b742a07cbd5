"""Compares two files by their contents: tensors, arrays, numbers in text, members of archives."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import torch

from ronde.verify.clauses.database import database_rows, is_database
from ronde.verify.clauses.events import can_read_events, differing_events, is_event_file
from ronde.verify.clauses.packed import is_packed, unpacked
from ronde.verify.clauses.text import Unstable, differing_number
from ronde.verify.clauses.verdict import DUST, Tolerance

__all__ = ["Beyond", "FileComparison", "compare_contents"]

_TORCH_SUFFIXES = {".pt", ".pth", ".ckpt", ".bin", ".tar"}
_PICKLE_SUFFIXES = {".pkl", ".pickle"}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Beyond(enum.Enum):
    """Reasons for which only the existence of a file can be compared."""

    unstable = "two runs of plain python differ in {}"
    unread = "{} has other bytes, in a format that is not read here"


@dataclasses.dataclass(frozen=True, slots=True)
class FileComparison:
    """Outcome of comparing two files; empty where they agree.

    Attributes:
        wrong: description of the first difference.
        beyond: reason for which (a part of) the file could not be compared.
    """

    wrong: str = ""
    beyond: Beyond | None = None


def compare_contents(
    mine: Path, reference: Path, tolerance: Tolerance, repeats: Sequence[Path] = ()
) -> FileComparison:
    """Compare the contents of two files.

    Other differences than rounding that `repeats`, the files of further runs of plain python, also show are
    passed over.
    """
    content, expected = mine.read_bytes(), reference.read_bytes()
    if content == expected:
        return FileComparison()
    if is_event_file(reference):
        if not can_read_events():
            return FileComparison(beyond=Beyond.unread)
        return FileComparison(differing_events(mine, reference, tolerance, repeats) or "")
    unreadable = object()
    other = _load(reference, unreadable)
    if other is not unreadable:
        value = _load(mine, unreadable)
        if value is unreadable:
            return FileComparison("cannot be loaded, in plain python it can")
        again = [loaded for each in repeats if (loaded := _load(each, unreadable)) is not unreadable]
        allowed = _EntryBounds.of(tolerance, other, again)
        unstable = {place for each in again for place, _ in _differences(each, other, allowed, "")}
        found = _differences(value, other, allowed, "")
        return FileComparison(next((wrong for place, wrong in found if not _lies_in(place, unstable)), ""))
    if is_packed(reference):
        return _compare_packed(mine, reference, tolerance, repeats)
    try:
        text, expected_text = content.decode(), expected.decode()
    except UnicodeDecodeError:
        return _compare_bytes(content, expected, [repeat.read_bytes() for repeat in repeats])
    unstable = Unstable.of(
        expected_text, (repeat.read_bytes().decode(errors="replace") for repeat in repeats), tolerance
    )
    if unstable.lines is None or unstable.lines:  # a log, mostly, whose lines come from several threads
        return FileComparison(beyond=Beyond.unstable)
    return FileComparison(differing_number(text, expected_text, tolerance, unstable) or "")


def _compare_bytes(content: bytes, expected: bytes, repeats: Sequence[bytes]) -> FileComparison:
    """Compare an unknown format. Rounding may change any byte, but it does not cut a file short."""
    if any(again != expected for again in repeats):
        return FileComparison(beyond=Beyond.unstable)
    if expected.startswith(content) or content.startswith(expected):
        return FileComparison(f"{len(content)} bytes, in plain python {len(expected)} that begin alike")
    return FileComparison(beyond=Beyond.unread)


def _compare_packed(
    mine: Path, reference: Path, tolerance: Tolerance, repeats: Sequence[Path]
) -> FileComparison:
    with contextlib.ExitStack() as stack:
        expected = stack.enter_context(unpacked(reference))
        found = stack.enter_context(unpacked(mine)) if is_packed(mine) else None
        again = [stack.enter_context(unpacked(repeat)) for repeat in repeats if is_packed(repeat)]
        if expected is None:  # damaged, or encrypted
            return FileComparison(beyond=Beyond.unread)
        if found is None:
            return FileComparison("cannot be unpacked, in plain python it can")
        if any(each is None or list(each) != list(expected) for each in again):
            return FileComparison(beyond=Beyond.unstable)
        if list(found) != list(expected):
            odd = [name for name in (*found, *expected) if (name in found) != (name in expected)]
            return FileComparison(f"{odd[0]} is inside of one only" if odd else "the order of what is inside")
        beyond: Beyond | None = None
        for name, path in expected.items():
            theirs = [each[name] for each in again if each is not None]
            comparison = compare_contents(found[name], path, tolerance, theirs)
            if comparison.wrong:
                return FileComparison(f"{f'inside {name}' if name else 'uncompressed'}, {comparison.wrong}")
            beyond = beyond or comparison.beyond
        return FileComparison(beyond=beyond)


@dataclasses.dataclass(frozen=True, slots=True)
class _EntryBounds:
    """Bounds for the differences between entries of a file's arrays.

    Attributes:
        scale: the least magnitude to which differences are relative.
        noise: largest differences among runs of plain python, by place.
    """

    tolerance: Tolerance
    scale: float
    noise: Mapping[str, float]

    @classmethod
    def of(cls, tolerance: Tolerance, reference: Any, repeats: Sequence[Any]) -> _EntryBounds:
        """Compute the bounds from the reference and its repeats.

        As for parameters: to the last places each tensor by itself, otherwise relative to the largest entry
        of the file.
        """
        numbers = dict(_numbers(reference, ""))
        arrays = (each for each in numbers.values() if isinstance(each, numpy.ndarray))
        scale = max((_scale(each) for each in arrays), default=0.0)
        noise: dict[str, float] = {}
        for again in repeats:
            for place, repeated in _numbers(again, ""):
                if place in numbers:
                    apart = _apart(numpy.asarray(numbers[place]), numpy.asarray(repeated))
                    noise[place] = max(noise.get(place, 0.0), apart)
        return cls(tolerance, DUST * scale if tolerance.per_tensor else scale, noise)

    def apart(self, place: str, reference: numpy.ndarray) -> float:
        """Return the largest allowed difference for an entry of an array."""
        scale = max(self.scale, _scale(reference))
        return max(scale * self.tolerance.values, self.tolerance.thrice(self.noise.get(place, 0.0)))

    def close(self, place: str, value: float, reference: float) -> bool:
        """Return whether two single numbers agree."""
        return self.tolerance.close(value, reference, 0.0, self.noise.get(place, 0.0))


def _lies_in(place: str, places: Iterable[str]) -> bool:
    """Return whether the place is one of `places`, or inside of one."""
    return any(place == each or not each or place.startswith((f"{each}.", f"{each}[")) for each in places)


def _apart(one: numpy.ndarray, other: numpy.ndarray) -> float:
    """Return the largest difference of finite entries; 0 for other shapes or dtypes."""
    if one.shape != other.shape or one.dtype != other.dtype or one.dtype.kind not in "fc":
        return 0.0
    both = numpy.isfinite(one) & numpy.isfinite(other)
    return float(numpy.abs(one[both] - other[both]).max(initial=0.0))


def _load(path: Path, unreadable: object) -> Any:
    """Load a file by plain torch, numpy or pickle, without the script's classes.

    Returns `unreadable` if that fails.
    """
    try:
        if path.suffix in {".npy", ".npz"}:
            loaded: Any = numpy.load(path, allow_pickle=False)
            return dict(loaded) if path.suffix == ".npz" else loaded
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if path.suffix in _TORCH_SUFFIXES or _is_torch_archive(path):
            if _is_script_archive(path):
                return _state_and_code(path)
            return torch.load(path, map_location="cpu", pickle_module=_pickle_module(), weights_only=False)
        if is_database(path):
            return database_rows(path)
        if path.suffix in _PICKLE_SUFFIXES:
            return _Unpickler(io.BytesIO(path.read_bytes())).load()
    except Exception:
        return unreadable
    return unreadable


def _is_torch_archive(path: Path) -> bool:
    return any(name.endswith("/data.pkl") for name in _members(path))


def _is_script_archive(path: Path) -> bool:
    """Return whether the file is a TorchScript module, as `torch.jit.save` writes it."""
    return any(name.endswith("/constants.pkl") for name in _members(path))


def _members(path: Path) -> list[str]:
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def _state_and_code(path: Path) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.load`")  # the script was told when it saved the file
        loaded: Any = torch.jit.load(path, map_location="cpu")
    return {"state": dict(loaded.state_dict()), "code": loaded.code}


class _Unpickler(pickle.Unpickler):
    """Unpickler with an empty class for each class that only the script can import."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        try:
            return super().find_class(module_name, global_name)
        except (ImportError, AttributeError):
            return type(global_name, (SimpleNamespace,), {"__module__": module_name})


def _pickle_module() -> Any:
    module = ModuleType("ronde_lenient_pickle")
    module.__dict__.update(vars(pickle))
    module.__dict__["Unpickler"] = _Unpickler
    return module


def _numbers(value: Any, place: str) -> Iterator[tuple[str, numpy.ndarray | float]]:
    """Yield all arrays and single floats inside a value, with their places."""
    if isinstance(value, torch.Tensor):
        yield place, _array(value)
    elif isinstance(value, (numpy.ndarray, float)):
        yield place, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _numbers(each, _inside(place, key))
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _numbers(each, f"{place}[{index}]")
    elif hasattr(value, "__dict__"):
        yield from _numbers(vars(value), place)


def _inside(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)


def _scale(array: numpy.ndarray) -> float:
    """Return the largest finite magnitude; 0 for an array without floating-point numbers."""
    if array.dtype.kind not in "fc":
        return 0.0
    return float(numpy.abs(array[numpy.isfinite(array)]).max(initial=0.0))


def _differences(mine: Any, reference: Any, allowed: _EntryBounds, place: str) -> Iterator[tuple[str, str]]:
    """Yield the places where two values differ, each with the difference in words."""
    wrong = _differing(mine, reference, allowed, place)
    if wrong:
        yield place, f"{place or 'contents'}{wrong}"
    elif isinstance(reference, Mapping):
        for key, value in reference.items():
            yield from _differences(mine[key], value, allowed, _inside(place, key))
    elif isinstance(reference, (list, tuple)):
        for index, (one, other) in enumerate(zip(mine, reference, strict=True)):
            yield from _differences(one, other, allowed, f"{place}[{index}]")
    elif _is_object(reference):
        yield from _differences(vars(mine), vars(reference), allowed, place)


def _differing(mine: Any, reference: Any, allowed: _EntryBounds, place: str) -> str:
    """Describe how two values differ in type, shape or content; empty if they agree.

    Items of containers are compared by the caller.
    """
    if type(mine).__name__ != type(reference).__name__:
        return f": a {type(mine).__name__}, in plain python a {type(reference).__name__}"
    if isinstance(reference, (torch.Tensor, numpy.ndarray)):
        if mine.shape != reference.shape or mine.dtype != reference.dtype:
            shapes = tuple(mine.shape), tuple(reference.shape)
            return f": {mine.dtype} {shapes[0]}, in plain python {reference.dtype} {shapes[1]}"
        if isinstance(reference, numpy.ndarray):
            return _differing_array(mine, reference, allowed, place)
        if mine.requires_grad != reference.requires_grad:
            return f": requires_grad {mine.requires_grad}, in plain python {reference.requires_grad}"
        return _differing_array(_array(mine), _array(reference), allowed, place)
    if isinstance(reference, Mapping):
        odd = [key for key in [*mine, *reference] if (key in mine) != (key in reference)]
        what = f"key {odd[0]!r} is in one only" if odd else "the order of keys"
        return "" if list(mine) == list(reference) else f": {what} (ranks, plain python)"
    if isinstance(reference, (list, tuple)):
        return "" if len(mine) == len(reference) else f": {len(mine)} items, in plain python {len(reference)}"
    if isinstance(reference, float):
        agrees = allowed.close(place, mine, reference)
    elif isinstance(reference, int) and not isinstance(reference, bool):
        agrees = allowed.tolerance.close_whole(mine, reference, 0.0)
    elif isinstance(reference, (type(None), bool, complex, str, bytes)):
        agrees, mine, reference = mine == reference, repr(mine), repr(reference)
    elif _is_object(reference):
        agrees = True
    else:
        mine, reference = (_ADDRESS.sub("", repr(value)) for value in (mine, reference))
        agrees = mine == reference
    return "" if agrees else f": {mine}, in plain python {reference}"


def _is_object(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (torch.Tensor, numpy.ndarray))


def _array(tensor: torch.Tensor) -> numpy.ndarray:
    plain = tensor.detach()
    plain = plain.to_dense() if plain.layout is not torch.strided else plain
    return (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy()


def _differing_array(mine: numpy.ndarray, reference: numpy.ndarray, allowed: _EntryBounds, place: str) -> str:
    if reference.dtype.kind not in "fc":
        wrong = allowed.tolerance.wrong_whole(mine, reference, 0.0)
    else:
        same = (mine == reference) | ((mine != mine) & (reference != reference))
        with numpy.errstate(invalid="ignore"):
            wrong = ~same & ~(numpy.abs(mine - reference) <= allowed.apart(place, reference))
    if not numpy.any(wrong):
        return ""
    first = int(numpy.flatnonzero(wrong)[0])
    return f", entry {first}: {mine.flat[first]}, in plain python {reference.flat[first]}"
