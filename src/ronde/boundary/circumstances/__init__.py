"""What a script finds around it and what its threads give: on every rank that of the main rank."""

from __future__ import annotations
