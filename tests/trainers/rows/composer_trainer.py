"""Composer's Trainer with label smoothing."""

from trainers.row import Row

ROW = Row(
    title="Composer's `Trainer`",
    packages=("mosaicml==0.32.1",),
    script="composer_trainer.py",
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "divided"},
)
