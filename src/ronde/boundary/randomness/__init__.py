"""Randomness: the draws of one device, of which each rank takes its rows."""

from __future__ import annotations
