"""TorchRec's DLRM with an EmbeddingBagCollection."""

from trainers.row import Row

ROW = Row(
    title="TorchRec's `DLRM` with its `EmbeddingBagCollection`",
    packages=(
        "torchrec==1.9.2",
        "fbgemm-gpu-cpu==1.8.0",
        "tensordict==0.15.3",
    ),
    script="torchrec_dlrm.py",
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "divided"},
)
