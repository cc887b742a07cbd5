"""Hugging Face's Trainer, a BERT from its configuration that classifies."""

from trainers.row import Row

ROW = Row(
    title="transformers `Trainer`, BERT classifies",
    packages=("transformers==5.23.0", "accelerate==1.15.0"),
    script="hf_classification.py",
    expected={"ddp": "one piece but the loss", "zero3": "one piece but the loss", "tensor=2": "divided"},
)
