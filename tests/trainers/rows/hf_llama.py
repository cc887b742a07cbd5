"""Hugging Face's Trainer, a Llama from its configuration that learns to write."""

from trainers.row import Row

ROW = Row(
    title="transformers `Trainer`, Llama writes",
    packages=("transformers==5.23.0", "accelerate==1.15.0"),
    script="hf_causal_lm.py",
    arguments=("llama",),
    expected={"ddp": "one piece but the loss", "zero3": "one piece but the loss", "tensor=2": "divided"},
)
