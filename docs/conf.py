"""How the documentation is built by `make docs`; warnings, and references that lead nowhere, are errors."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # generated.py

import generated

from ronde import __version__
from ronde.plan.axes import AXES

DOCS = Path(__file__).resolve().parent

project = "ronde"
author = "the authors of ronde"
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
nitpicky = True
# Names of other projects: their inventories would be fetched from the network.
nitpick_ignore_regex = [
    ("py:class", r"ronde\.(verify|plan\.key|comm|testing\.hosts)\..*"),
    ("py:.*", r"(torch|numpy|os|pathlib|collections|contextlib|datetime|typing|subprocess|np|optional)\b.*"),
    ("py:.*", r"AbstractContextManager\b.*"),
    ("py:.*", r"(Path|Any|Callable|Mapping|Sequence|Iterable|Iterator|timedelta|Literal)\b.*"),
]

myst_enable_extensions = ["colon_fence", "deflist", "substitution"]
myst_heading_anchors = 4
# Single backticks in docstrings are code.
default_role = "code"
# Tables and help texts that are made from the code at every build, as {{ name }} in a page.
myst_substitutions = generated.substitutions()

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Attributes of a dataclass are told once, in its docstring, not again by autodoc.
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"ronde {release}"
html_theme_options = {"navigation_with_keys": True}


def short_signature(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str, result: str
) -> Any:
    """An axis of the plan without the types of its keys: the page of the plan has them in tables."""
    if thing not in AXES.values():
        return None
    defaults = (f"{field.name}={field.default!r}" for field in dataclasses.fields(thing))
    return f"(*, {', '.join(defaults)})", result


def drop_links_out(app: Any, name: str, source: list[str]) -> None:
    """Links to folders, and to Markdown outside of docs: of use where the repository is browsed, not here."""
    folder = (DOCS / name).parent

    def text_alone(match: re.Match[str]) -> str:
        target = (folder / match[2].partition("#")[0]).resolve()
        page = target.suffix == ".md" and DOCS not in target.parents
        # Pages of messages, which a generated one replaces, still have links to the places of before.
        gone = name.startswith("messages") and not target.exists()
        return match[1] if target.is_dir() or page or gone else match[0]

    source[0] = re.sub(r"(?<!!)\[([^][]+)\]\((?!\w+:|#)([^)\s]+)\)", text_alone, source[0])


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", short_signature)
    app.connect("source-read", drop_links_out)
