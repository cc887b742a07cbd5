"""The launcher to experiment with is that of the launch tests."""

from __future__ import annotations

from launch.conftest import experiment

__all__ = ["experiment"]
