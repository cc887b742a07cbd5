"""A GCN of PyTorch Geometric on mini-batches of graphs."""

from trainers.row import Row

ROW = Row(
    title="PyTorch Geometric's `GCNConv` on batches of graphs",
    packages=("torch-geometric==2.8.1",),
    script="pyg_graphs.py",
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "divided"},
)
