"""A replica follows what is published, and stays at what it can trust."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from codes import without_code
from ronde.errors import UsageError
from ronde.server.serving.exported import Exported, export
from ronde.server.serving.program import NoProgram, Unfit
from ronde.server.serving.publication import KEPT_VERSIONS
from ronde.server.serving.published import Published
from ronde.server.serving.replica import NoSuchTable, NoSuchVersion, Replica
from server.serving.published import Run, inputs

USERS = np.arange(50)


def test_it_answers_as_the_model_does(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.step()
    run.publish()
    replica = Replica(Published(tmp_path))
    for rows in (1, 2, 16, 33):
        x, (words, offsets) = inputs(rows)
        given = {"x": x, "bags_0": words, "bags_1": offsets.tolist()}
        assert torch.equal(replica.predict(given)["score"], run.score(x, (words, offsets)))
    assert np.array_equal(replica.look_up("user", USERS), run.rows())
    assert replica.counts.asked > replica.counts.found > 0


def test_rows_and_parameters_of_a_version_come_together(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.publish()
    replica = Replica(Published(tmp_path))
    x, (words, offsets) = inputs(5)
    before, score = replica.snapshot, run.score(x, (words, offsets))
    for _ in range(3):
        run.step()
        run.publish()
    assert replica.refresh()
    assert not replica.refresh()
    assert (replica.snapshot.version, replica.lag is not None) == (4, True)
    assert np.array_equal(replica.look_up("user", USERS), run.rows())
    assert torch.equal(replica.predict([x, words, offsets])["score"], run.score(x, (words, offsets)))
    # Whoever began with the older version ends with it.
    assert torch.equal(replica.predict([x, words, offsets], before)["score"], score)


def test_a_row_that_was_removed_is_gone(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.step()
    run.publish()
    replica = Replica(Published(tmp_path))
    table = run.model.user.table
    ids = table.rows().ids
    table.remove(ids[:3])
    run.publish()
    replica.refresh()
    served = replica.snapshot.tables["user"]
    assert len(served) == len(ids) - 3
    assert np.array_equal(replica.look_up("user", ids), table.look_up(ids))
    assert np.array_equal(Replica(Published(tmp_path)).look_up("user", ids), table.look_up(ids))


def test_one_goes_back_and_forth(tmp_path: Path) -> None:
    run = Run(tmp_path)
    was = {}
    for turn in range(6):
        run.step()
        was[run.publish(whole=turn == 3)] = run.rows()
    replica = Replica(Published(tmp_path))
    for version in (2, 5, 1, 4):
        replica.roll_back(version)
        assert replica.pinned == replica.snapshot.version == version
        assert np.array_equal(replica.look_up("user", USERS), was[version])
    run.step()
    was[run.publish()] = run.rows()
    assert not replica.refresh()
    replica.follow()
    assert (replica.pinned, replica.snapshot.version) == (None, 7)
    assert np.array_equal(replica.look_up("user", USERS), was[7])
    with pytest.raises(NoSuchVersion, match=r"there is no version 9; there are 1, 2, 3, 4, 5, 6, 7"):
        replica.roll_back(9)


def test_what_is_damaged_is_found_and_not_served(tmp_path: Path) -> None:
    """Until a version comes that does not rest on it."""
    run = Run(tmp_path)
    run.publish()
    said: list[str] = []
    replica = Replica(Published(tmp_path), say=said.append)
    rows = replica.look_up("user", USERS)
    run.step()
    run.publish()
    broken = tmp_path / "delta-2-rank-0.safetensors"
    content = bytearray(broken.read_bytes())
    content[-1] ^= 1
    broken.write_bytes(content)
    assert not replica.refresh()
    run.step()
    run.publish()
    assert not replica.refresh()
    assert replica.snapshot.version == 1
    assert np.array_equal(replica.look_up("user", USERS), rows)
    assert replica.trouble == said[-1]
    assert without_code(said[0]) == (
        f"version 2 cannot be served, 1 still is: {broken} is damaged: its checksum is not the one that its "
        "manifest names"
    )
    run.step()
    run.publish(whole=True)
    assert replica.refresh()
    assert np.array_equal(replica.look_up("user", USERS), run.rows())
    assert replica.trouble == ""


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 1}', b'{"format": 1, "tables": 3}', b"\xff"])
def test_a_manifest_that_is_none_is_passed_over(tmp_path: Path, content: bytes) -> None:
    run = Run(tmp_path, program=False)
    run.publish()
    replica = Replica(Published(tmp_path))
    (tmp_path / "version-2.json").write_bytes(content)
    assert not replica.refresh()
    assert "version-2.json is damaged: it is not a manifest" in replica.trouble


def test_old_versions_go_when_nothing_rests_on_them(tmp_path: Path) -> None:
    run = Run(tmp_path, program=False)
    for turn in range(KEPT_VERSIONS + 6):
        run.step()
        run.publish(whole=turn in (4, 9))
    source = Published(tmp_path)
    assert source.versions() == list(range(5, KEPT_VERSIONS + 7))
    assert not list(tmp_path.glob(".*"))
    for version in source.versions():
        Replica(source, version)
    assert len(list(tmp_path.glob("delta-*"))) == len(source.versions())


def test_what_an_earlier_run_left_undone_goes(tmp_path: Path) -> None:
    run = Run(tmp_path, program=False)
    run.publish()
    kept = sorted(path.name for path in tmp_path.iterdir())
    for name in (
        "delta-2-rank-0.safetensors",
        ".whole-2-rank-1.safetensors",
        ".2-rank-1.json",
        "program-2.pt2",
    ):
        (tmp_path / name).write_bytes(b"")
    other = Run(tmp_path, program=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    assert other.publish() == 2
    # A follower of the earlier run goes over to the new one, which begins with all rows.
    replica = Replica(Published(tmp_path), 1)
    replica.follow()
    assert replica.snapshot.version == 2


def test_without_a_program_rows_are_served(tmp_path: Path) -> None:
    run = Run(tmp_path, program=False)
    run.publish()
    replica = Replica(Published(tmp_path))
    with pytest.raises(NoProgram, match="it was not asked for"):
        replica.predict([1])
    with pytest.raises(NoSuchTable, match="there is no table 'item'; the model has user, words"):
        replica.look_up("item", USERS)
    with pytest.raises(NoSuchVersion, match="nothing is published there yet"):
        Replica(Published(tmp_path / "elsewhere"))


@pytest.mark.parametrize("int8", [False, True])
def test_an_exported_model_is_the_same(tmp_path: Path, int8: bool) -> None:
    run = Run(tmp_path / "published")
    run.step()
    run.publish()
    own = Replica(Published(tmp_path / "published"))
    export(own.snapshot, tmp_path / "out", int8=int8)
    other = Replica(Exported(tmp_path / "out"))
    x, (words, offsets) = inputs(5)
    rows, scores = run.rows(), run.score(x, (words, offsets))
    apart = float(np.abs(rows).max()) / 250 if int8 else 0
    assert np.abs(other.look_up("user", USERS) - rows).max() <= apart
    predicted = other.predict([x, words, offsets])["score"]
    assert float((predicted - scores).abs().max()) <= apart
    with pytest.raises(UsageError, match="is there already"):
        export(own.snapshot, tmp_path / "out")
    (tmp_path / "out" / "table-1.parquet").write_bytes(b"PAR1")
    with pytest.raises(Exception, match=r"table-1\.parquet is damaged"):
        Replica(Exported(tmp_path / "out"))


def test_other_libraries_read_what_is_exported(tmp_path: Path) -> None:
    import pyarrow.parquet as pq
    from safetensors.torch import load_file

    run = Run(tmp_path / "published")
    run.step()
    run.publish()
    export(Replica(Published(tmp_path / "published")).snapshot, tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "table-0.parquet").to_pydict()
    assert table["id"] == run.model.user.table.rows().ids.tolist()
    assert np.array_equal(np.float32(table["row"]), run.model.user.table.rows().embeddings)
    dense = load_file(tmp_path / "out" / "model.safetensors")
    program = torch.export.load(tmp_path / "out" / "program.pt2")
    for name, value in run.model.top.state_dict().items():
        assert torch.equal(dense[f"top.{name}"], value)
        assert torch.equal(program.state_dict[f"top.{name}"], value)


def test_inputs_that_do_not_fit_are_told(tmp_path: Path) -> None:
    Run(tmp_path).publish()
    replica = Replica(Published(tmp_path))
    fine = {"x": [[1, 2, 0.5]], "bags_0": [3], "bags_1": [0]}
    assert replica.predict(fine)["score"].shape == (1,)
    for change, message in {
        ("x", ((1, 2),)): "input x has the shape [1, 2]; it is float32 of shape [any, 3]",
        ("x", "ab"): "input x is not an array of numbers; it is float32 of shape [any, 3]",
        ("bags_0", (1.5,)): "input bags_0 has float64 values; it is int64 of shape [any]",
        ("y", 1): "there is no input y; the model takes x, bags_0, bags_1",
    }.items():
        with pytest.raises(Unfit) as refused:
            replica.predict({**fine, change[0]: change[1]})
        assert without_code(str(refused.value)) == message
    with pytest.raises(Unfit, match="input bags_1 is missing"):
        replica.predict({"x": fine["x"], "bags_0": [3]})
    with pytest.raises(Unfit, match="1 inputs were given; the model takes 3"):
        replica.predict([1])
    with pytest.raises(Unfit, match="the model cannot take these inputs"):
        replica.predict({**fine, "bags_1": [0, 1]})
