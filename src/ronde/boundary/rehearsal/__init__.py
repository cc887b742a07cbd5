"""Rehearsals: whether a model may run on this rank's rows, found by trials of a copy."""

from __future__ import annotations
