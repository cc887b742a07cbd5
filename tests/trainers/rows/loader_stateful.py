"""torchdata's StatefulDataLoader, stopped and resumed within an epoch."""

from trainers.row import Row

ROW = Row(
    title="torchdata's `StatefulDataLoader`, resumed within an epoch",
    packages=("torchdata==0.11.0",),
    script="loader_stateful.py",
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "divided"},
)
