"""torchtitan's Llama 3 in a training loop for one device."""

from trainers.row import Row

ROW = Row(
    title="torchtitan's Llama 3, a loop for one device",
    packages=(
        "torchtitan==0.3.0",
        "triton==3.9.0",
    ),
    script="torchtitan_llama.py",
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "divided"},
)
