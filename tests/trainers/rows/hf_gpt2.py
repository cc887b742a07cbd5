"""Hugging Face's Trainer, a GPT-2 from its configuration that learns to write."""

from trainers.row import Row

ROW = Row(
    title="transformers `Trainer`, GPT-2 writes",
    packages=("transformers==5.23.0", "accelerate==1.15.0"),
    script="hf_causal_lm.py",
    arguments=("gpt2",),
    expected={"ddp": "one piece but the loss", "zero3": "one piece but the loss", "tensor=2": "divided"},
)
