"""No false alarms: what public examples do gives the single-device answer, and nothing untrue is said of it.

The scripts in tests/public do what well-known public examples do, in words of our own;
docs/reference/tried.md tells of such examples as they were found.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ronde.testing.parity import assert_parity
from said import compare_said
from support.warm import WarmHost

SCRIPTS = sorted((Path(__file__).parent / "public").glob("*.py"))
# What is said of a script, and true of it. All others run on shards, and nothing is said.
SAID: dict[str, tuple[str, ...]] = {
    # One state, one picture, one sentence at a time.
    "actor_critic": ("nothing was cut",),
    "neural_style": ("nothing was cut",),
    "lstm_tagger": ("LSTMTagger runs in parts, not as one piece: rows of its",),
    # The nodes of a graph are bound to each other.
    "gcn": ("GCN runs in parts, not as one piece: it failed on 30 rows",),
    "gat": ("GAT runs in parts, not as one piece, because of GraphAttentionLayer inside it: rows of its",),
    # A loss that the model makes, a look at a mask, a batch on the second axis of an object.
    "mingpt": ("GPT runs in parts, not as one piece: an output without a batch axis",),
    "run_glue": (
        "its collate_fn may",
        "BertForSequenceClassification runs in parts, not as one piece, because of BertModel inside it",
    ),
    "snli": ("SNLIClassifier: the batch was found on the second axis",),
    "siamese": ("its samples draw random numbers",),
    # Training runs on shards; the notes are about one sentence, which is translated word by word.
    "translation": (
        "its collate_fn may use all samples",
        "Translator: the batch was found on the second axis",
        "PositionalEncoding runs in parts",
        "TransformerEncoder runs in parts",
        "TransformerDecoder runs in parts, not as one piece: it depends on the number of rows",
        "TransformerDecoder runs in parts, not as one piece: it failed on 2 rows",
        "TransformerDecoderLayer runs in parts",
    ),
}
# One that is cut, one with batches on the second axis and one that cannot be cut; `make soak` runs all.
EVERY_DAY = {"mingpt", "snli", "gcn"}


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=script.stem, marks=() if script.stem in EVERY_DAY else pytest.mark.soak)
        for script in SCRIPTS
    ],
)
def test_a_public_example_raises_no_false_alarm(script: Path, host: WarmHost, tmp_path: Path) -> None:
    if script.stem == "run_glue":
        pytest.importorskip("transformers")
    assert_parity(script, ranks=2, place=tmp_path, steps=1000, starter=host.start)
    compare_said(tmp_path / "ranks" / "run", SAID.get(script.stem, ()))


def test_there_are_twenty() -> None:
    assert len(SCRIPTS) >= 20
