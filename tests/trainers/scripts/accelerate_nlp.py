"""A loop with Accelerator, in the manner of accelerate's `nlp_example.py`: a BERT that compares two sentences."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

accelerator = Accelerator(cpu=True)
set_seed(42)
ids = torch.randint(1, 64, (48, 12))
data = [
    {"input_ids": each, "attention_mask": torch.ones(12), "labels": int(each[0] > each[6])} for each in ids
]


def collate(rows):
    batch = {key: torch.stack([row[key] for row in rows]) for key in ("input_ids", "attention_mask")}
    return {**batch, "labels": torch.tensor([row["labels"] for row in rows])}


train = DataLoader(data[:32], shuffle=True, collate_fn=collate, batch_size=8, drop_last=True)
test = DataLoader(data[32:], shuffle=False, collate_fn=collate, batch_size=8)
config = BertConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
)
model = BertForSequenceClassification(config).to(accelerator.device)
optimizer = AdamW(params=model.parameters(), lr=2e-3)
scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=len(train) * 2)
model, optimizer, train, test, scheduler = accelerator.prepare(model, optimizer, train, test, scheduler)
print("processes", accelerator.num_processes, accelerator.distributed_type)
for epoch in range(2):
    model.train()
    for batch in train:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    model.eval()
    right = 0
    for batch in test:
        with torch.no_grad():
            outputs = model(**batch)
        predictions, references = accelerator.gather_for_metrics(
            (outputs.logits.argmax(dim=-1), batch["labels"])
        )
        right += (predictions == references).sum().item()
    accelerator.print(f"epoch {epoch}: {right} of 16")
accelerator.save_model(model, "final")
