"""`python -m ronde` is the same as `ronde`."""

from __future__ import annotations

from ronde.cli import main

if __name__ == "__main__":
    main()
