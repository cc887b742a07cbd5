"""TRL's GRPOTrainer with a Llama from its configuration and a reward function."""

from trainers.row import Row

ROW = Row(
    title="TRL `GRPOTrainer`",
    packages=("trl==1.16.0", "transformers==5.23.0", "datasets==5.2.0"),
    script="trl_trainers.py",
    arguments=("grpo",),
    expected={"ddp": "parts", "zero3": "parts", "tensor=2": "parts"},
    because="while it generates, the model is called with a cache of keys and values (`DynamicCache`), whose "
    "tensors are not found; training calls are one piece but the loss.",
)
