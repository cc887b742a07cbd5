"""Clauses are pure functions of records: each names the first divergence, and lets rounding pass."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from pathlib import Path

import numpy
import pytest
import torch

from ronde.verify.clauses import control, data, randomness, update, values
from ronde.verify.clauses.contents import FileComparison, compare_contents
from ronde.verify.clauses.noise import Noise
from ronde.verify.clauses.text import Unstable, differing_number
from ronde.verify.clauses.verdict import Status, Tolerance
from ronde.verify.record import BatchRecord, RankRecord, Read, StepFingerprint, Writer, read_record

DOUBLE = Tolerance.strict()
SINGLE = Tolerance.as_is()


def record_of(place: Path, *tensors: list[float], rank: int = 0) -> RankRecord:
    """A record of one step for each tensor, and a value read after each."""
    place.mkdir(exist_ok=True)
    writer = Writer(str(place), rank)
    for step, entries in enumerate(tensors, 1):
        stored = writer.store(numpy.array(entries))
        random = {"torch": "a", "numpy": "b", "random": "c"}
        writer.event(
            "step", step=step, optimizer="SGD 1", parameters={"weight": stored, "bias": stored}, random=random
        )
        writer.event("gradients", step=step, norms={"weight": entries[0], "bias": None})
        writer.event("read", call="item", where="train.py:7", value=entries[0])
    return read_record(place, rank)


def test_equal_records_hold(tmp_path: Path) -> None:
    plain = record_of(tmp_path / "a", [1.0, 2.0], [3.0, float("nan")])
    same = record_of(tmp_path / "b", [1.0, 2.0 + 1e-15], [3.0, float("nan")])
    assert update.compare(plain, [same], DOUBLE).status is Status.holds
    assert values.compare(plain, [same], DOUBLE).status is Status.holds
    assert control.compare(plain, [same], plain_exit=0, ranks_exit=0).status is Status.holds
    assert randomness.compare(plain, [same]).status is Status.holds
    assert data.compare(plain, [same]).status is Status.nothing


def test_update_names_the_earliest_step_of_any_rank(tmp_path: Path) -> None:
    plain = record_of(tmp_path / "a", [1.0, 2.0], [3.0, 4.0], [5.0, 6.0])
    late = record_of(tmp_path / "b", [1.0, 2.0], [3.0, 4.0], [5.0, 6.1])
    early = record_of(tmp_path / "c", [1.0, 2.0], [3.0, 4.0 + 4e-10], [5.0, 6.0], rank=1)
    found = update.compare(plain, [late, early], DOUBLE)
    assert found.status is Status.broken
    assert found.divergence.startswith(
        "rank 1, step 2 (SGD 1), parameter weight: 1.0e-10 of its largest entry"
    )


def test_a_tensor_of_rounding_errors_beside_large_ones_is_no_difference(tmp_path: Path) -> None:
    """An attention's bias of the keys, from nought: its gradient is nought but for rounding."""

    def record(place: Path, *biases: float) -> RankRecord:
        place.mkdir()
        writer = Writer(str(place), 0)
        for step, bias in enumerate(biases, 1):
            stored = {"weight": writer.store(numpy.array([0.5])), "bias": writer.store(numpy.array([bias]))}
            writer.event("step", step=step, optimizer="SGD 1", parameters=stored, random={})
        return read_record(place, 0)

    plain = record(tmp_path / "a", 0.0, 1e-18)
    assert update.compare(plain, [record(tmp_path / "b", 3e-18, 2e-18)], DOUBLE).status is Status.holds
    assert update.compare(plain, [record(tmp_path / "c", 0.0, 1e-15)], DOUBLE).status is Status.broken


def test_single_precision_is_judged_by_the_vector_and_the_noise_floor(tmp_path: Path) -> None:
    plain = record_of(tmp_path / "a", [1.0, 1.0])
    other = record_of(tmp_path / "b", [1.0, 1.0 + 3e-5])
    assert update.compare(plain, [other], SINGLE).status is Status.broken
    noisy = Tolerance.as_is(Noise(shares={"weight": (1e-5,), "bias": (1e-5,)}))
    assert update.compare(plain, [other], noisy).status is Status.holds
    assert update.differences(other, plain).vector == pytest.approx((3e-5 / 2**0.5,), rel=1e-4)


def test_what_a_script_in_double_precision_reads_need_not_be() -> None:
    own = Tolerance.as_is(double=True)
    assert own == dataclasses.replace(SINGLE, parameters=Tolerance.double().parameters)


def test_noise_grows_with_the_steps_and_is_the_largest_of_all_twins() -> None:
    one = Noise(vector=(1e-7, 3e-7), tensors={"a": (1.0,)}, values={("t.py:1", "item", False): 1e-3})
    other = Noise(vector=(2e-7,), gradients=(5e-6,), tensors={"a": (0.5, 1.5), "b": (2.0,)})
    both = Noise.largest((one, other))
    assert both.vector == (2e-7, 3e-7)
    assert (both.tensors, both.values) == ({"a": (1.0, 1.5), "b": (2.0,)}, one.values)
    assert [both.vector_at(step) for step in (1, 2, 9)] == [2e-7, 3e-7, 3e-7]
    assert (both.gradients_at(7), both.floor, Noise().vector_at(1)) == (5e-6, 3e-7, 0.0)
    # A bound holds as long as thrice the noise is less, that of a quarter of the steps later.
    noisy = Tolerance.as_is(Noise(shares={"a": (1e-6,) * 5 + (1e-5,)}))
    allowed = [noisy.of_share("a", step) for step in (1, 3, 4)]
    assert allowed == [SINGLE.parameters, SINGLE.parameters, pytest.approx(3e-5)]
    assert noisy.of_share("b", 2) == SINGLE.parameters


def test_what_twins_read_differently_is_allowed_at_that_line_alone(tmp_path: Path) -> None:
    plain = record_of(tmp_path / "a", [1.0], [2.0])
    twin = record_of(tmp_path / "b", [1.0], [2.01])
    near, far = record_of(tmp_path / "c", [1.0], [2.02]), record_of(tmp_path / "d", [1.0], [2.04])
    assert values.value_differences(twin, plain) == {("train.py:7", "item", False): pytest.approx(0.01)}
    noisy = Tolerance.as_is(Noise(values=values.value_differences(twin, plain), gradients=(1.0, 1.0)))
    assert values.compare(plain, [near], dataclasses.replace(SINGLE, gradients=1.0)).status is Status.broken
    assert values.compare(plain, [near], noisy).status is Status.holds
    assert values.compare(plain, [far], noisy).status is Status.broken


def test_gradients_close_to_a_minimum_are_judged_by_their_own_noise(tmp_path: Path) -> None:
    """Parameters have settled there, and of their gradients rounding is what is left."""
    plain = record_of(tmp_path / "a", [0.5], [1e-6])
    halves = record_of(tmp_path / "b", [0.5], [1.02e-6])
    ranks = record_of(tmp_path / "c", [0.5], [1.05e-6])
    half = record_of(tmp_path / "d", [0.5], [0.5e-6])
    measured = values.norm_differences(halves, plain)
    assert measured == pytest.approx((0.0, 0.02))
    tolerance = Tolerance.as_is(Noise(gradients=measured))
    assert "gradient norm of weight" in values.compare(plain, [ranks], SINGLE).divergence
    assert values.compare(plain, [ranks], tolerance).status is Status.holds
    assert "gradient norm of weight" in values.compare(plain, [half], tolerance).divergence


def test_in_double_precision_a_tensor_has_its_own_noise(tmp_path: Path) -> None:
    """Adam makes of a gradient that is nought but for rounding a step of rounding over `eps`."""
    plain = record_of(tmp_path / "a", [1.0, 2e-10], [1.0, 4e-10])
    halves = record_of(tmp_path / "b", [1.0, 2e-10], [1.0, 5e-10])
    near = record_of(tmp_path / "c", [1.0, 2e-10], [1.0, 6e-10])
    far = record_of(tmp_path / "d", [1.0, 2e-10], [1.0, 8e-10])
    assert update.compare(plain, [near], DOUBLE).status is Status.broken
    noisy = Tolerance.strict(Noise(tensors=update.differences(halves, plain).tensors))
    assert update.compare(plain, [near], noisy).status is Status.holds
    assert "(allowed 3.0e-10)" in update.compare(plain, [far], noisy).divergence


def test_nothing_is_broken_where_twins_lie_further_apart(tmp_path: Path) -> None:
    """Adam's step for a bias before batch norm; RMSprop around its optimum."""
    plain = record_of(tmp_path / "a", [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0])
    twin = record_of(tmp_path / "b", [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.5])
    run = record_of(tmp_path / "c", [1.0, 1.0], [1.0, 1.0], [1.0, 1.4], [1.0, 1.4])
    early = record_of(tmp_path / "d", [1.0, 1.4], [1.0, 1.4], [1.0, 1.4], [1.0, 1.4])
    for tolerance in (Tolerance.strict, Tolerance.double, Tolerance.as_is):
        apart = update.differences(twin, plain)
        noisy = tolerance(Noise(shares=apart.shares, tensors=apart.tensors, vector=apart.vector))
        assert update.compare(plain, [run], tolerance()).status is Status.broken
        assert update.compare(plain, [run], noisy).status is Status.holds
        # What comes long before rounding could have done it is a mistake.
        assert "step 1 (SGD 1)" in update.compare(plain, [early], noisy).divergence
        assert noisy.noise.blurred(noisy.sharp) == {"weight": 4, "bias": 4}


def test_missing_steps_break_update_and_control(tmp_path: Path) -> None:
    plain = record_of(tmp_path / "a", [1.0, 2.0], [3.0, 4.0])
    fewer = record_of(tmp_path / "b", [1.0, 2.0])
    assert update.compare(plain, [fewer], DOUBLE).divergence == "rank 0: 1 steps, in plain python 2"
    assert (
        "1 values read, in plain python 2"
        in control.compare(plain, [fewer], plain_exit=0, ranks_exit=0).divergence
    )


def test_exit_codes_are_control(tmp_path: Path) -> None:
    plain = record_of(tmp_path / "a", [1.0])
    assert "exit code 3" in control.compare(plain, [plain], plain_exit=0, ranks_exit=3).divergence


def test_integers_are_exact_and_types_count(tmp_path: Path) -> None:
    plain = record_of(tmp_path / "a")
    read = Read(call="item", where="train.py:9", value=10**9)
    plain = dataclasses.replace(plain, reads=(read,))
    for value in (10**9 + 1, 1e9):
        other = dataclasses.replace(plain, rank=1, reads=(dataclasses.replace(read, value=value),))
        found = values.compare(plain, [plain, other], DOUBLE)
        assert found.divergence == (
            f"rank 1, train.py:9, item (value 1): {value}, in plain python 1000000000"
        )


def test_whole_numbers_may_turn_where_models_round(tmp_path: Path) -> None:
    """Under a precision: a count by one, or by about the share that other values may; so many choices too."""
    assert (DOUBLE.turns, SINGLE.turns) == (0.0, 0.0)
    tolerance = Tolerance.as_is(precision="fp16")
    assert tolerance.turns == tolerance.values == pytest.approx(0.02)
    plain = record_of(tmp_path / "a")

    def verdict_of(*pairs: tuple[object, object], allowed: Tolerance = tolerance) -> str:
        mine, theirs = (
            tuple(Read(call="item", where="train.py:9", value=pair[which]) for pair in pairs)
            for which in (0, 1)
        )
        reference = dataclasses.replace(plain, reads=theirs)
        return values.compare(reference, [dataclasses.replace(plain, reads=mine)], allowed).divergence

    assert verdict_of((30, 29)) == ""
    assert verdict_of((30, 27)).endswith("30, in plain python 27")
    # Of the largest at that line of the script: 2 of 100 on average, and twice the root of that.
    assert verdict_of((30, 26), (100, 100)) == ""
    assert verdict_of((30, 25), (100, 100)) != ""
    assert verdict_of((True, False)) != ""
    assert verdict_of((30, 30.0)) != ""
    assert verdict_of((30, 29), allowed=SINGLE) != ""

    choices = numpy.arange(100)
    one, three = choices.copy(), choices.copy()
    one[3], three[[3, 5, 7]] = 90, 90
    assert not tolerance.wrong_whole(one, choices, 0.0).any()
    assert list(numpy.flatnonzero(tolerance.wrong_whole(three, choices, 0.0))) == [3, 5, 7]
    assert list(numpy.flatnonzero(SINGLE.wrong_whole(one, choices, 0.0))) == [3]
    # Of an array of one there is no share.
    assert tolerance.wrong_whole(numpy.array(5), numpy.array(7), 0.0).all()
    assert not tolerance.wrong_whole(numpy.array(5), numpy.array(6), 0.0).any()

    assert differing_number("right: 45 of 50", "right: 44 of 50", tolerance) is None
    assert differing_number("right: 45 of 50", "right: 41 of 50", tolerance) is not None
    assert differing_number("right: 45 of 50", "right: 44 of 50", SINGLE) is not None


def test_a_count_beside_a_loss_widens_nothing(tmp_path: Path) -> None:
    """One line prints both, and large whole numbers differ by one that a float does not hold."""
    plain = record_of(tmp_path / "a")

    def reads(loss: float, count: int) -> RankRecord:
        found = tuple(Read(call="item", where="train.py:9", value=each) for each in (loss, count))
        return dataclasses.replace(plain, reads=found)

    assert values.compare(reads(1.0, 500), [reads(1.0 + 2e-4, 500)], SINGLE).status is Status.broken
    assert values.compare(reads(1.0, 500), [reads(1.0 + 2e-6, 500)], SINGLE).status is Status.holds
    large = numpy.array([2**60])
    assert SINGLE.wrong_whole(large + 1, large, 0.0).all()


def test_another_path_is_control_not_values(tmp_path: Path) -> None:
    plain = dataclasses.replace(
        record_of(tmp_path / "a"), reads=(Read(call="__bool__", where="train.py:5", value=True),)
    )
    other = dataclasses.replace(plain, reads=(Read(call="item", where="train.py:8", value=1),))
    assert values.compare(plain, [other], DOUBLE).status is Status.holds
    assert control.compare(plain, [other], plain_exit=0, ranks_exit=0).divergence == (
        "rank 0, value 1: item at train.py:8, in plain python __bool__ at train.py:5"
    )


def test_batches_and_ids(tmp_path: Path) -> None:
    plain = dataclasses.replace(
        record_of(tmp_path / "a"), batches=(BatchRecord(fingerprints=("x", "y")),), ids=("[1]", "[2]")
    )
    # A loader that prefetches has drawn more indices.
    assert data.compare(plain, [dataclasses.replace(plain, ids=("[1]",))]).status is Status.holds
    swapped = dataclasses.replace(plain, ids=("[2]", "[1]"))
    assert data.compare(plain, [swapped]).divergence == (
        "rank 0, index batch 1: samples [2], in plain python [1]"
    )
    other = dataclasses.replace(plain, batches=(BatchRecord(fingerprints=("x", "z")),))
    assert data.compare(plain, [other]).divergence == "rank 0, batch 1, part 1: z, in plain python y"


def test_generators(tmp_path: Path) -> None:
    step = StepFingerprint(step=1, optimizer="SGD 1", parameters={}, random={"torch": "a", "numpy": "b"})
    plain = dataclasses.replace(record_of(tmp_path / "a"), steps=(step,))
    moved = dataclasses.replace(
        plain, steps=(dataclasses.replace(step, random={"torch": "z", "numpy": "b"}),)
    )
    assert "after step 1: torch's generator" in randomness.compare(plain, [moved]).divergence
    assert randomness.compare(plain, [plain, plain]).status is Status.holds


@pytest.mark.parametrize(
    ("mine", "reference", "difference"),
    [
        ("loss 0.12345\n", "loss 0.12346\n", None),
        ("loss 0.123\n", "loss 0.125\n", "line 1: 0.123, in plain python 0.125"),
        ("correct 7\n", "correct 8\n", "line 1: 7, in plain python 8"),
        ("a 1\nb  9.9999\n", "a 1\nb 10.0000\n", None),
        ("a nan", "a nan", None),
        ("a 1\na 1\n", "a 1\n", "line 2: '\\na ', in plain python '\\n'"),
        ("epoch 1: 1e-3", "epoch 1: 1.5e-3", "line 1: 1e-3, in plain python 1.5e-3"),
    ],
)
def test_texts(mine: str, reference: str, difference: str | None) -> None:
    assert differing_number(mine, reference, DOUBLE) == difference


def test_times_are_left_out() -> None:
    left_out = Unstable.of("loss 0.5 in 1.27 s", ["loss 0.5 in 3.21 s"], DOUBLE)
    assert left_out.left_out == {1}
    assert differing_number("loss 0.5 in 9.99 s", "loss 0.5 in 1.27 s", DOUBLE, left_out) is None
    assert differing_number("loss 0.7 in 9.99 s", "loss 0.5 in 1.27 s", DOUBLE, left_out) is not None


def test_lines_that_differ_between_runs_of_plain_python_are_left_out() -> None:
    plain = "to /tmp/tmpq1\nloss 0.5\nend\n"
    unstable = Unstable.of(plain, ["to /tmp/tmpz7\nloss 0.50000002\nend\n"], SINGLE)
    assert (unstable.lines, unstable.left_out) == ({0}, frozenset())
    assert differing_number("to /tmp/tmpx4\nloss 0.50000005\nend\n", plain, DOUBLE, unstable) is None
    wrong = differing_number("to /tmp/tmpx4\nloss 0.50000007\nend\n", plain, DOUBLE, unstable)
    assert wrong == "line 2: 0.50000007, in plain python 0.5"
    assert differing_number("to /tmp/tmpx4\nloss 0.5\nbye\n", plain, DOUBLE, unstable) is not None
    assert Unstable.of(plain, [plain + "more\n"], DOUBLE).lines is None


def test_torch_files_are_compared_by_value(tmp_path: Path) -> None:
    plain, near, far, other = (tmp_path / name for name in ("plain.pt", "near.pt", "far.pt", "other.pt"))
    weight = torch.ones(2, 2, dtype=torch.float64)
    torch.save({"w": weight, "epoch": 3}, plain)
    torch.save({"w": weight + 1e-13, "epoch": 3}, near)
    torch.save({"w": weight + 1e-3, "epoch": 3}, far)
    torch.save({"module.w": weight, "epoch": 3}, other)
    assert compare_contents(near, plain, DOUBLE) == FileComparison()
    assert compare_contents(far, plain, DOUBLE).wrong == "w, entry 0: 1.001, in plain python 1.0"
    assert "key 'module.w' is in one only" in compare_contents(other, plain, DOUBLE).wrong


def test_arrays_of_a_file_have_their_own_noise(tmp_path: Path) -> None:
    def saved(name: str, noisy: float, exact: float = 1.0) -> Path:
        entries = {"layers": [numpy.array([1.0, noisy]), numpy.array([1.0, exact])]}
        torch.save(entries, tmp_path / name)
        return tmp_path / name

    plain, again = saved("plain.pt", 2e-10), saved("again.pt", 3e-10)
    near, far, other = saved("near.pt", 4e-10), saved("far.pt", 6e-10), saved("other.pt", 2e-10, 1 + 2e-10)
    assert compare_contents(near, plain, DOUBLE).wrong.startswith("layers[0], entry 1: ")
    assert compare_contents(near, plain, DOUBLE, [again]) == FileComparison()
    assert compare_contents(far, plain, DOUBLE, [again]).wrong.startswith("layers[0], entry 1: ")
    assert compare_contents(other, plain, DOUBLE, [again]).wrong.startswith("layers[1], entry 1: ")


def test_what_runs_of_plain_python_save_differently_is_left_out(tmp_path: Path) -> None:
    """A loss by its own noise; names, lengths and keys altogether."""

    def saved(file: str, **values: object) -> Path:
        whole = {"loss": 0.5, "name": "run-1", "seen": [1, 2], "kept": [3, 4], "options": Namespace(path="a")}
        torch.save({**whole, **values}, tmp_path / file)
        return tmp_path / file

    plain = saved("plain.pt")
    again = saved("again.pt", loss=0.5 + 1e-6, name="run-2", seen=[1, 2, 3], options=Namespace(path="b"))
    near = saved("near.pt", loss=0.5 - 2e-6, name="run-3", seen=[1], options=Namespace(path="c"))
    assert compare_contents(near, plain, DOUBLE).wrong.startswith("loss: ")
    assert compare_contents(near, plain, DOUBLE, [again]) == FileComparison()
    for name, wrong in (("loss", 0.6), ("kept", [3, 5])):
        found = compare_contents(saved("far.pt", **{name: wrong}), plain, DOUBLE, [again])
        assert found.wrong.startswith(name)


def test_a_record_until_a_step_is_what_came_before_it(tmp_path: Path) -> None:
    whole = record_of(tmp_path / "a", [1.0], [2.0], [3.0])
    part = whole.before(3)
    assert [each.step for each in (*part.steps, *part.gradients)] == [1, 2, 1, 2]
    assert [(each.step, each.value) for each in part.reads] == [(1, 1.0), (2, 2.0)]
