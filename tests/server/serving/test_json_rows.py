"""Rows as JSON are the same when they are read back."""

from __future__ import annotations

import json

import numpy as np

from ronde.server.serving.json_rows import json_of_rows


def test_every_float32_comes_back() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint64).astype(np.uint32)
    rows = bits.view(np.float32)
    rows = rows[np.isfinite(rows)][:99_000].reshape(-1, 9).copy()
    rows[0] = [0, -0.0, 1, 1e-45, 3.4028235e38, 1.1754944e-38, 9.9999998e9, 123456.79, 16777216]
    back = np.array(json.loads(json_of_rows(rows)), np.float64).astype(np.float32)
    assert np.array_equal(back, rows)


def test_others_too() -> None:
    assert json_of_rows(np.array([[np.nan, 1.5], [np.inf, -2]], np.float32)) == b"[[null,1.5],[null,-2.0]]"
    assert json_of_rows(np.array([[0.1]])) == b"[[0.1]]"
    assert json_of_rows(np.empty((0, 3), np.float32)) == b"[]"
    assert json_of_rows(np.array([[100, -0.25, 0]], np.float32)) == b"[[1e2,-2.5e-1,0]]"
