"""MovieLens-100K: 943 people rate 1,682 films. A rating of 4 or 5 is a click.

The files lie in the wheel of the package recbole, which pip downloads once; it is not installed.
GroupLens, who collected the ratings, allow research with them and no commercial use.
"""

import hashlib
import itertools
import subprocess
import sys
import zipfile
from collections import defaultdict

import numpy as np
from interactions import hashed, tensors

WHEEL = "recbole-1.2.1-py3-none-any.whl"
SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
INSIDE = "recbole/dataset_example/ml-100k/ml-100k."
FIELDS = "user item age gender occupation zip year genres".split()
CROSSES = "user-genres gender-item age-item occupation-item occupation-genres age-genres".split()


class NoData(Exception):
    """The ratings cannot be had; the message says what to do."""


def wheel(folder):
    """The wheel in a folder, downloaded at the first call."""
    path = folder / WHEEL
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        words = (
            "-m pip download --quiet --no-deps --only-binary :all: --disable-pip-version-check --dest".split()
        )
        done = subprocess.run(
            [sys.executable, *words, str(folder), "recbole==1.2.1"], capture_output=True, text=True
        )
        if done.returncode or not path.exists():
            last = (done.stderr.strip() or "pip said nothing").splitlines()[-1]
            raise NoData(
                f"MovieLens-100K lies in the wheel of recbole 1.2.1, which pip could not download: {last}\n"
                f"Get {WHEEL} where there is a network (pip download --no-deps recbole==1.2.1) and put it "
                f"into {folder}, or train on the click log, which is computed: --data clicks"
            )
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        raise NoData(
            f"{path} is not the file that was published: its SHA-256 is {found}, not {SHA256}. "
            "Remove it, and run this again"
        )
    return path


def table(archive, name):
    """The columns of one file, by name: lists of texts."""
    header, *lines = archive.read(INSIDE + name).decode().splitlines()
    names = [column.partition(":")[0] for column in header.split("\t")]
    return dict(zip(names, zip(*(line.split("\t") for line in lines), strict=True), strict=True))


def read(path):
    """The samples in a wheel, in the order of time.

    The dense numbers of a sample are what was known when it was rated: the person's and the film's share of
    clicks among earlier ratings and how many these were, the person's share among films of like genres, and
    the year of the film.
    """
    with zipfile.ZipFile(path) as archive:
        ratings, users, items = (table(archive, name) for name in ("inter", "user", "item"))
    user_row = {user: row for row, user in enumerate(users["user_id"])}
    item_row = {item: row for row, item in enumerate(items["item_id"])}
    times = np.array(ratings["timestamp"], dtype=np.float64)
    order = np.argsort(times, kind="stable")
    user = np.array([user_row[each] for each in ratings["user_id"]])[order]
    item = np.array([item_row[each] for each in ratings["item_id"]])[order]
    clicked = (np.array(ratings["rating"], dtype=np.float64) >= 4)[order]

    genres = [text.split() for text in items["class"]]
    year = np.array([int(text) if text.isdigit() else 0 for text in items["release_year"]])
    values = {
        "user": user,
        "item": item,
        "age": (np.array(users["age"], dtype=np.int64) // 5)[user],
        "gender": numbered(users["gender"])[user],
        "occupation": numbered(users["occupation"])[user],
        "zip": numbered(code[:2] for code in users["zip_code"])[user],
        "year": year[item],
        "genres": numbered(items["class"])[item],
    }
    ids = np.stack([hashed(number, values[name]) for number, name in enumerate(FIELDS)], axis=1)
    past = history(times[order], user, item, genres, clicked)
    dense = np.column_stack([past, (year[item] - 1990) / 10])
    pairs = [tuple(FIELDS.index(name) for name in cross.split("-")) for cross in CROSSES]
    return tensors(dense, ids, clicked, pairs)


def numbered(texts):
    """A number for each text, equal for equal ones."""
    return np.unique(np.array(list(texts)), return_inverse=True)[1]


def history(times, users, items, genres, clicked):
    """What earlier ratings say of each: log odds of a click by user, by item, by user and genre; counts."""
    seen = defaultdict(lambda: [0.0, 0.0])  # clicks, ratings

    def odds(key, weight=5.0):
        clicks, ratings = seen[key]
        share = (clicks + weight * 0.55) / (ratings + weight)
        return np.log(share / (1 - share))

    rows = np.empty((len(times), 5))
    for _, group in itertools.groupby(range(len(times)), key=times.__getitem__):
        at_once = list(group)  # of equal time, so none is known to another
        keys = []
        for i in at_once:
            u, v = ("user", users[i]), ("item", items[i])
            tastes = [(users[i], genre) for genre in genres[items[i]]]
            taste = sum(odds(key) for key in tastes) / max(1, len(tastes))
            rows[i] = odds(u), odds(v), taste, np.log1p(seen[u][1]) / 3, np.log1p(seen[v][1]) / 3
            keys.append([u, v, *tastes])
        for i, own in zip(at_once, keys, strict=True):
            for key in own:
                seen[key][0] += clicked[i]
                seen[key][1] += 1
    return rows
