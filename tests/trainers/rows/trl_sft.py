"""TRL's SFTTrainer with a Llama from its configuration."""

from trainers.row import Row

ROW = Row(
    title="TRL `SFTTrainer`",
    packages=("trl==1.16.0", "transformers==5.23.0", "datasets==5.2.0"),
    script="trl_trainers.py",
    arguments=("sft",),
    expected={"ddp": "one piece but the loss", "zero3": "one piece but the loss", "tensor=2": "divided"},
)
