"""What differs between two runs, taken out of a text, so that it may be compared word by word."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from codes import without_code

__all__ = ["ADVICE", "normal"]

ADVICE = (
    "usual causes: a branch or a generator's seed that depends on the process id, the host name, os.urandom, "
    "the order of os.listdir or of a set, what a library's clock says, or what threads and processes of the "
    "script do: they read a model's output, set a learning rate, or make batches in an order of their own\n"
    "fix: count steps instead of seconds, seed with a fixed number, sort what is listed, give threads "
    "output.numpy(), or use --ranks 1"
)


def normal(text: str, folder: Path) -> str:
    """`text` with the test's folder as DIR, the interpreter as PYTHON, without run ids and codes."""
    for path in {str(folder.resolve()), str(folder)}:
        text = text.replace(path, "DIR")
    text = text.replace(sys.executable, "PYTHON")
    text = re.sub(r"\S*/(\d{8}-\d{6}|torchrun)-[0-9a-f]{6,}", "RUN", text)
    text = without_code(text)
    text = re.sub(r"\(process \d+\)", "(process N)", text)
    # Python 3.13 marks the place in a line of a traceback in other ways than 3.11, and 3.10 not at all.
    text = re.sub(r"^ +[~^]+\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^ronde: seed .*\n", "", text, flags=re.MULTILINE)
