"""Compressors: the arithmetic that was published, in and out of bytes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ronde.comm.compressors.adasum import adasum
from ronde.comm.compressors.bits import pack, packed_size, unpack
from ronde.comm.compressors.cast import Cast
from ronde.comm.compressors.codec import Codec
from ronde.comm.compressors.low_rank import multiply, orthonormal, pays
from ronde.comm.compressors.min_max import MinMax
from ronde.comm.compressors.one_bit import OneBit
from ronde.comm.compressors.sparse import RandomK, TopK, largest
from ronde.comm.compressors.two_bit import TwoBit

CODECS: dict[str, Any] = {
    "fp16": Cast(torch.float16),
    "bf16": Cast(torch.bfloat16),
    "int8": MinMax(),
    "onebit": OneBit(),
    "twobit": TwoBit(),
    "twobit 0.5": TwoBit(0.5),
    "topk": TopK(0.1),
    "randomk": RandomK(0.1, key=3, unbiased=False),
}


def drawn(numel: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(numel, dtype=dtype, generator=torch.Generator().manual_seed(numel))


def decoded(codec: Codec, message: torch.Tensor, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """What a message decodes to: [numel] of this dtype."""
    values = torch.zeros(numel, dtype=dtype, device=message.device)
    codec.add(message, values)
    return values


def through(codec: Any, values: torch.Tensor) -> torch.Tensor:
    return decoded(codec, codec.encode(values), values.numel(), values.dtype)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("numel", [0, 1, 7, 8, 1000])
def test_a_message_is_as_long_as_was_said_and_can_be_taken_off_again(
    name: str, dtype: torch.dtype, numel: int
) -> None:
    codec, values = CODECS[name], drawn(numel, dtype)
    if name in ("topk", "randomk") and not numel:
        pytest.skip("there is nothing to choose from")
    before = values.clone()
    message = codec.encode(values)
    assert message.dtype == torch.uint8
    assert message.numel() == codec.size(numel, dtype)
    assert torch.equal(values, before)
    there = values.clone()
    codec.add(message, there, sign=-1)
    torch.testing.assert_close(there, values - decoded(codec, message, numel, dtype), rtol=0, atol=1e-7)


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("numel", [0, 1, 5, 8, 33])
def test_bits_come_out_as_they_went_in(bits: int, numel: int) -> None:
    codes = torch.randint(0, 1 << bits, (numel,), dtype=torch.uint8)
    packed = pack(codes, bits)
    assert packed.numel() == packed_size(numel, bits)
    assert torch.equal(unpack(packed, bits, numel), codes)


def test_narrow_floats_round_to_nearest_and_stay_finite() -> None:
    values = torch.tensor([1.0, 1 + 2**-12, 1e6, -1e6, math.inf], dtype=torch.float64)
    assert through(Cast(torch.float16), values).tolist() == [1.0, 1.0, 65504.0, -65504.0, math.inf]
    assert through(Cast(torch.bfloat16), values)[:2].tolist() == [1.0, 1.0]
    assert math.isnan(through(Cast(torch.float16), torch.tensor([math.nan])).item())


def test_int8_has_256_levels_between_least_and_largest() -> None:
    values = drawn(4000)
    low, high = values.min().item(), values.max().item()
    scale = 255 / (high - low + 1e-7)
    upper = round(high * scale)
    expected = [(min(round(x * scale), upper)) / scale for x in values.tolist()]
    found = through(MinMax(), values)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-14)
    assert (found - values).abs().max() <= 0.5 / scale + 1e-12 + 1 / scale / 2
    assert len(found.unique()) <= 256


def test_int8_leaves_a_constant_tensor_nearly_as_it_is() -> None:
    values = torch.full((9,), 0.25, dtype=torch.float64)
    torch.testing.assert_close(through(MinMax(), values), values, rtol=1e-8, atol=0)


def test_onebit_is_the_sign_times_the_mean_magnitude() -> None:
    values = torch.tensor([3.0, -1.0, 0.0, -4.0])
    assert through(OneBit(), values).tolist() == [2.0, -2.0, 2.0, -2.0]


def test_twobit_is_mxnets() -> None:
    """The example of MXNet's documentation, with threshold 0.5: what is small stays with the sender."""
    values = torch.tensor([-0.7, 0.5, 0.3, -0.2, 1.9, -0.5])
    assert through(TwoBit(0.5), values).tolist() == [-0.5, 0.5, 0.0, 0.0, 0.5, -0.5]
    message = TwoBit(0.5).encode(values)
    assert message.numel() == 8 + 8  # the threshold, and two bits for each


def test_twobit_without_a_threshold_takes_the_mean_of_the_large_ones() -> None:
    values = torch.tensor([4.0, -3.0, 0.5, -0.5])
    assert through(TwoBit(), values).tolist() == [3.5, -3.5, 0.0, 0.0]
    assert through(TwoBit(), torch.zeros(5)).tolist() == [0.0] * 5


@pytest.mark.parametrize("power", [1, 3])
def test_twobit_without_a_threshold_loses_about_as_little_as_it_can(power: int) -> None:
    """Against the best of all cuts, each with the mean of what is behind it; normal, and with heavy tails."""
    values = torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** power
    sizes = values.abs().sort(descending=True).values
    # Of the k largest at their mean, the squared error is less by k times the mean's square.
    counts = torch.arange(1, len(sizes) + 1)
    best = sizes.square().sum() - (sizes.cumsum(0).square() / counts).max()
    assert (values - through(TwoBit(), values)).square().sum() < 1.1 * best


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_twobit_hides_no_number_that_is_not_finite(bad: float) -> None:
    """Wherever it is: levels are found on a sample."""
    values = torch.ones(200_000)
    values[1] = bad
    assert not through(TwoBit(), values).isfinite().all()


def test_twobit_sends_the_few_that_are_not_nought() -> None:
    values = torch.zeros(1_000_000)
    values[1::60_001] = 2.0
    decoded = through(TwoBit(), values)
    assert decoded.ne(0).equal(values.ne(0))


@pytest.mark.parametrize("numel", [10, 5000, 200_000])
@pytest.mark.parametrize("density", [0.001, 0.01, 0.5, 1.0])
def test_topk_has_the_elements_of_largest_magnitude(numel: int, density: float) -> None:
    values = drawn(numel)
    count = min(numel, max(1, round(density * numel)))
    places = largest(values, count)
    assert len(places.unique()) == count
    left = values.abs().clone()
    left[places] = -1
    assert values.abs()[places].min() >= left.max()


def test_topk_is_found_where_a_sample_misleads() -> None:
    """Large elements where the sample does not look, and a tensor that is mostly nought."""
    values = torch.zeros(1 << 18)
    values[1::7] = 1.0
    values[5] = 9.0
    assert 5 in largest(values, 3).tolist()
    assert through(TopK(1 / (1 << 18)), values).nonzero().view(-1).tolist() == [5]


def test_randomk_is_unbiased_and_chooses_anew() -> None:
    values = drawn(60)
    total = torch.zeros_like(values)
    rounds = 4000
    for key in range(rounds):
        sent = through(RandomK(0.1, key=key, unbiased=True), values)
        assert sent.count_nonzero() == 6
        total += sent
    torch.testing.assert_close(total / rounds, values, rtol=0.2, atol=0.1)
    kept = through(RandomK(0.1, key=1, unbiased=False), values)
    there = kept != 0
    assert torch.equal(kept[there], values[there])


def test_factors_are_orthonormal_and_only_where_they_pay() -> None:
    basis = orthonormal(drawn(60).view(3, 20))
    torch.testing.assert_close(basis @ basis.T, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-12)
    assert pays(torch.Size([64, 64]), 4)
    assert pays(torch.Size([64, 3, 8, 8]), 4)
    assert not pays(torch.Size([64]), 1)
    assert not pays(torch.Size([4, 4]), 2)
    assert not pays(torch.Size([]), 1)


@pytest.mark.parametrize("columns", [1, 2, 9])
def test_factors_are_multiplied(columns: int) -> None:
    left, right = drawn(columns * 5).view(columns, 5), drawn(columns * 7).view(columns, 7)
    out = torch.full((5, 7), float("nan"), dtype=torch.float64)
    multiply(left, right, out)
    torch.testing.assert_close(out, left.T @ right, rtol=0, atol=1e-14)


def test_adasum_adds_what_is_orthogonal_and_averages_what_is_alike() -> None:
    a = torch.tensor([1.0, 0.0, 2.0, 2.0, 0.0])
    b = torch.tensor([0.0, 3.0, 2.0, 2.0, 5.0])
    found = adasum(a, b, [2, 2, 1])
    assert found.tolist() == [1.0, 3.0, 2.0, 2.0, 5.0]
    x, y = drawn(7), drawn(8)[:7]
    product, of_x, of_y = x @ y, x @ x, y @ y
    expected = x * (1 - product / (2 * of_x)) + y * (1 - product / (2 * of_y))
    torch.testing.assert_close(adasum(x, y, [7]), expected, rtol=0, atol=1e-14)
