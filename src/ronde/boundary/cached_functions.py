"""Functions with a cache (`functools.lru_cache`), whose results outlive the call that made them.

Of what such a function has cached Python tells its garbage collector only.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

__all__ = ["CACHED", "emptied_back", "kept_for_all", "results"]

CACHED: type = functools._lru_cache_wrapper


def results(function: Any, most: int) -> list[Any]:
    """What a function has cached; nothing where that is more than `most`."""
    return [result for _, result in _entries(function)] if function.cache_info().currsize <= most else []


def kept_for_all(function: Any) -> list[Any]:
    """What a function without arguments has cached, as something that is made once; nothing before.

    Of others it is different on each rank what they have been asked for: the length of its rows, say.
    """
    return [result for key, result in _entries(function)[:1] if type(key) is tuple and not key]


def _entries(function: Any) -> list[tuple[Any, Any]]:
    """Keys and results, as far as they can be had."""
    if not function.cache_info().currsize:
        return []
    if function.cache_parameters()["maxsize"] is None:
        return list(_by_key(function).items())
    # A link for each, in the order of their use: key, result, and the class of links.
    held = _held(function)
    links = [place for place, each in enumerate(held) if getattr(each, "__name__", "") == "_lru_list_elem"]
    return [(held[place - 2], held[place - 1]) for place in links]


def emptied_back(function: Any) -> Callable[[], None]:
    """What has a function forget whatever it caches from now on.

    Of a cache that is full, what is thrown out meanwhile is gone: it is computed again.
    """
    if not function.cache_info().currsize:
        return function.cache_clear
    before = dict(_by_key(function))

    def back() -> None:
        now = _by_key(function)
        for key in [key for key in now if key not in before]:
            del now[key]

    return back


def _by_key(function: Any) -> dict[Any, Any]:
    """The cache itself; what keeps an order of use can do with a key that is gone."""
    found = [each for each in _held(function)[-1:] if type(each) is dict]
    return found[0] if found else {}


def _held(function: Any) -> list[Any]:
    """What it leads to up to the function that it calls: links if it has an order of use, then the cache."""
    held = gc.get_referents(function)
    return held[: next((place for place, each in enumerate(held) if each is function.__wrapped__), 0)]
