"""Ignite's trainer and evaluator."""

from trainers.row import Row

ROW = Row(
    title="Ignite's `create_supervised_trainer`",
    packages=("pytorch-ignite==0.5.5",),
    script="ignite_engine.py",
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "divided"},
)
