"""PEFT's LoRA of a Llama, trained by Hugging Face's Trainer."""

from trainers.row import Row

ROW = Row(
    title="PEFT LoRA with `Trainer`",
    packages=("peft==0.21.2", "transformers==5.23.0"),
    script="peft_lora.py",
    expected={"ddp": "one piece but the loss", "zero3": "one piece but the loss", "tensor=2": "divided"},
)
