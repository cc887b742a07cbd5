"""Fine-tunes a small BERT with Trainer, as the README of transformers does it."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
config = BertConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
    num_labels=3,
)
model = BertForSequenceClassification(config)
ids = torch.randint(1, 64, (40, 12))
data = [{"input_ids": each, "attention_mask": torch.ones(12), "labels": int(each.sum()) % 3} for each in ids]
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    max_steps=6,
    learning_rate=1e-3,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=3,
    save_strategy="steps",
    save_steps=3,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    seed=0,
)
trainer = Trainer(model=model, args=arguments, train_dataset=data[:32], eval_dataset=data[32:])
print("world size", trainer.args.world_size, trainer.args.parallel_mode)
trainer.train()
for entry in trainer.state.log_history:
    print({key: value for key, value in entry.items() if "loss" in key or key == "grad_norm"})
trainer.save_model("final")
