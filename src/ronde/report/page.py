"""Page of runs: one HTML document without other files or network.

Its contents are JSON (`document`), and the scripts in `browser` draw them. `ronde report` puts them into the
document; to the document of `ronde ui` they are sent, again and again.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from ronde.report.document import frozen, title
from ronde.report.run import RunState

__all__ = ["frozen_page", "live_page", "policy", "write"]

_SCRIPTS = ("dom.js", "charts.js", "page.js")
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Ccircle cx='8' cy='8' r='5.5' fill='none' stroke='%233a7fe0' stroke-width='4'/%3E%3C/svg%3E"
)


def frozen_page(runs: Sequence[RunState]) -> str:
    """Return the page of runs as they are now."""
    names = ", ".join(dict.fromkeys(map(title, runs)))
    return _page(names, frozen(runs).decode(), live=False)


def live_page() -> str:
    """Return the page that gets its contents from the server of `ronde ui`."""
    return _page("Runs", "null", live=True)


def _page(name: str, state: str, *, live: bool) -> str:
    # Nothing in the data ends the element that holds it.
    state = state.replace("<", "\\u003c")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(live=live)}">'
        f'<link rel="icon" href="{_ICON}"><title>{escape(name)} · ronde</title>'
        f"<style>{_text('style.css')}</style>"
        f"</head><body{' data-live' if live else ''}><main></main>"
        "<noscript>The page is drawn by a script, which this browser does not run.</noscript>"
        f'<script type="application/json" id="state">{state}</script>'
        f'<script type="module">{_script()}</script></body></html>\n'
    )


@functools.cache
def policy(*, live: bool) -> str:
    """Return the content security policy: these scripts and this style, and nothing else."""
    allowed = [
        "default-src 'none'",
        f"script-src '{_digest(_script())}'",
        f"style-src '{_digest(_text('style.css'))}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'self'",
    ]
    return "; ".join([*allowed, "connect-src 'self'"] if live else allowed)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _script() -> str:
    return "".join(map(_text, _SCRIPTS))


@functools.cache
def _text(name: str) -> str:
    return (resources.files("ronde.report") / "browser" / name).read_text(encoding="utf-8")


def write(runs: Sequence[RunState], out: Path) -> None:
    """Write the page, whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = out.with_name(f".{out.name}.new")
    temporary.write_text(frozen_page(runs), encoding="utf-8")
    temporary.replace(out)
