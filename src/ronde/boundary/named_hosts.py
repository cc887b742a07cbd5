"""From which generators of the process, Python's or numpy's, code may draw: found by what it names.

A name is looked up: `random.random` and `np.random.rand` draw, an attribute that is called `random` does not,
nor does `torch.random`. What cannot be looked up is a library's own business, and may draw from both.
"""

from __future__ import annotations

import dis
import functools
import random
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from ronde.boundary.reach import GENERATORS, Reach, names_in
from ronde.patching.caller import is_users, is_users_module
from ronde.rng.random_state import HOSTS, NUMPYS, PYTHONS

__all__ = ["hosts_in_model", "hosts_in_samples"]

_NONE = frozenset[str]()

_RANDOM: Any = numpy.random  # whose stubs do not know all of it
_GLOBAL = {id(random.random.__self__): PYTHONS, id(_RANDOM.mtrand._rand): NUMPYS}  # pyright: ignore[reportFunctionMemberAccess]
# Of numpy's module, functions that belong to no object.
_LOOSE = {id(_RANDOM.mtrand.seed), id(_RANDOM.mtrand.sample), id(_RANDOM.mtrand.ranf)}
# Methods and functions of libraries that draw from numpy's where they are given no generator.
_NUMPYS_NAMES = {"check_random_state", "rvs"}
# Packages whose objects draw from none of these unless that is named.
_STILL = {"builtins", "torch", "numpy", "collections", "functools", "types", "threading", "queue", "_thread"}
_VARIABLES = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}


def hosts_in_model(module: torch.nn.Module, reach: Reach) -> frozenset[str]:
    """From which generators the code of a model may draw.

    Args:
        reach: of the module: all that code of the user's reaches. Of a library all is looked at that stands
            beside a class.
    """
    return _hosts(reach).union(*(_hosts_beside(kind) for kind in {type(part) for part in module.modules()}))


def hosts_in_samples(reach: Reach) -> frozenset[str]:
    """From which generators a data set may draw, of which all is reached; a library's object from both."""
    kinds = {type(value) for _, value in reach.values}
    foreign = (kind.__module__.partition(".")[0] not in _STILL for kind in kinds if not is_users(kind))
    return HOSTS if any(foreign) else _hosts(reach)


def _hosts(reach: Reach) -> frozenset[str]:
    found, unknown = _NONE, False
    for _, value in reach.values:
        found |= _of_value(value)
        if isinstance(value, types.FunctionType) and is_users(value):
            hosts, loose = _of_function(value)
            found, unknown = found | hosts, unknown or loose
    if unknown and any(_is_foreign_and_random(type(value)) for _, value in reach.values):
        return HOSTS
    held = any(value is numpy for _, value in reach.values) and "random" in reach.names
    return found | _numpys(held or not _NUMPYS_NAMES.isdisjoint(reach.names))


def _numpys(named: bool) -> frozenset[str]:
    return frozenset((NUMPYS,)) if named else _NONE


def _is_foreign_and_random(kind: type) -> bool:
    """Whether objects of a library's have something that is called `random`, and are no generators."""
    known = issubclass(kind, (*GENERATORS, types.ModuleType)) or is_users(kind)
    return not known and not kind.__module__.startswith("torch.") and hasattr(kind, "random")


def _of_value(value: Any) -> frozenset[str]:
    """The generator that something is, belongs to, or is the module of."""
    if isinstance(value, types.ModuleType):
        return _of_module(value)
    host = _GLOBAL.get(id(getattr(value, "__self__", value))) or (NUMPYS if id(value) in _LOOSE else None)
    return frozenset((host,)) if host else _NONE


def _of_module(module: types.ModuleType) -> frozenset[str]:
    if module is random:
        return frozenset((PYTHONS,))
    return _numpys(module.__name__.startswith("numpy.random"))


def _of_function(function: types.FunctionType) -> tuple[frozenset[str], bool]:
    """Of its code and that of functions inside; and whether it names `random` of something unknown."""
    variables = dict[str, Any](function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            variables[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return _of_code(function.__code__, variables)


def _of_code(code: types.CodeType, variables: Mapping[str, Any]) -> tuple[frozenset[str], bool]:
    chains, others, imported = _loads(code)
    found, unknown = _of_imports(code, imported), "random" in others
    for chain in chains:
        hosts, loose = _looked_up(chain, variables)
        found, unknown = found | hosts, unknown or loose
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            hosts, loose = _of_code(inner, variables)
            found, unknown = found | hosts, unknown or loose
    return found, unknown


def _of_imports(code: types.CodeType, imported: frozenset[str]) -> frozenset[str]:
    """Of modules that a function imports itself."""
    found = frozenset((PYTHONS,)) if "random" in imported else _NONE
    named = any(each.startswith("numpy.random") for each in imported)
    return found | _numpys(named or ("numpy" in imported and "random" in names_in(code)))


def _looked_up(chain: tuple[str, ...], variables: Mapping[str, Any]) -> tuple[frozenset[str], bool]:
    """What a variable is, and the attributes that are taken of it at once, as far as these are modules'."""
    first, *rest = chain
    if first not in variables:
        return _NONE, "random" in rest
    value = variables[first]
    for place, name in enumerate(rest):
        if not isinstance(value, types.ModuleType):
            return _of_value(value), "random" in rest[place:]
        own, taken = _of_module(value), vars(value).get(name)
        if own and not isinstance(taken, types.ModuleType):
            # A class makes generators of their own.
            return _NONE if isinstance(taken, type) or name == "default_rng" else own, False
        if name == "random" and not _is_known(value):
            return HOSTS, False
        value = taken
    return _of_value(value), False


def _is_known(module: types.ModuleType) -> bool:
    """Whether what is called `random` in a module is looked into, or is torch's."""
    return module.__name__.partition(".")[0] in ("torch", "numpy") or is_users_module(module)


@functools.lru_cache(maxsize=4096)
def _loads(code: types.CodeType) -> tuple[frozenset[tuple[str, ...]], frozenset[str], frozenset[str]]:
    """Variables with the attributes taken of them; attributes of something else; modules imported."""
    chains, others, imported = set[tuple[str, ...]](), set[str](), set[str]()
    chain: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname in _ATTRIBUTES and chain:
            chain = (*chain, step.argval)
            continue
        if step.opname in ("PUSH_NULL", "EXTENDED_ARG"):
            continue
        if chain:
            chains.add(chain)
        chain = (step.argval,) if step.opname in _VARIABLES else ()
        if step.opname in _ATTRIBUTES:
            others.add(step.argval)
        elif step.opname == "IMPORT_NAME":
            imported.add(step.argval)
    return frozenset(chains), frozenset(others), frozenset(imported)


@functools.lru_cache(maxsize=4096)
def _hosts_beside(kind: type) -> frozenset[str]:
    """Of all functions, and methods of classes, that stand beside a class of a library's."""
    owners = (owner for owner in kind.__mro__ if not is_users(owner))
    modules = {
        owner.__module__ for owner in owners if not owner.__module__.startswith(("torch.", "builtins"))
    }
    return _NONE.union(*map(_hosts_of_module, modules))


@functools.lru_cache(maxsize=4096)
def _hosts_of_module(name: str) -> frozenset[str]:
    everything = vars(sys.modules.get(name, types)).values()
    held = [item for item in everything if getattr(item, "__module__", None) == name]
    held += [item for kind in held if isinstance(kind, type) for item in vars(kind).values()]
    functions = (getattr(item, "__func__", item) for item in held)
    return _NONE.union(*(_of_librarys(each) for each in functions if isinstance(each, types.FunctionType)))


def _of_librarys(function: types.FunctionType) -> frozenset[str]:
    hosts, unknown = _of_function(function)
    named = not _NUMPYS_NAMES.isdisjoint(names_in(function.__code__))
    return HOSTS if unknown else hosts | _numpys(named)
