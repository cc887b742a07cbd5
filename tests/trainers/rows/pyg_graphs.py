"""A GCN of PyTorch Geometric on mini-batches of graphs."""

from trainers.row import Row

ROW = Row(
    title="PyTorch Geometric's `GCNConv` on batches of graphs",
    packages=("torch-geometric==2.8.1",),
    script="pyg_graphs.py",
    expected={"ddp": "parts", "zero3": "parts", "tensor=2": "replicated"},
    because="nodes of all graphs are rows of one tensor, and a convolution reads its edges on the host.",
)
