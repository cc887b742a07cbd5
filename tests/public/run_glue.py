"""As Hugging Face's run_glue_no_trainer, by hand: a tokenizer, dynamic padding, linear warm-up, accuracy and F1."""

import math

import torch
from sklearn.metrics import f1_score
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_scheduler, set_seed

set_seed(11)
GOOD, BAD = "a fine warm film full of joy".split(), "a dull cold film without any joy".split()
WORDS = {word: i + 2 for i, word in enumerate(sorted({*GOOD, *BAD}))}


def sentence(i):
    words = (GOOD, BAD)[i % 2]
    return {
        "input_ids": [1, *(WORDS[words[(i * 5 + 3 * k) % len(words)]] for k in range(3 + i % 6))],
        "labels": i % 2,
    }


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    ids = torch.tensor([f["input_ids"] + [0] * (longest - len(f["input_ids"])) for f in features])
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "labels": torch.tensor([f["labels"] for f in features]),
    }


train_set, eval_set = [sentence(i) for i in range(160)], [sentence(i) for i in range(160, 200)]
train_dataloader = DataLoader(train_set, shuffle=True, collate_fn=collate, batch_size=16)
eval_dataloader = DataLoader(eval_set, collate_fn=collate, batch_size=16)
config = BertConfig(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    num_labels=2,
)
model = BertForSequenceClassification(config)
no_decay = ["bias", "LayerNorm.weight"]
grouped = [
    {
        "params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
        "weight_decay": 0.01,
    },
    {
        "params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)],
        "weight_decay": 0.0,
    },
]
optimizer = torch.optim.SGD(grouped, lr=0.05, momentum=0.9)
accumulation, epochs = 2, 3
updates = math.ceil(len(train_dataloader) / accumulation) * epochs
lr_scheduler = get_scheduler("linear", optimizer, num_warmup_steps=3, num_training_steps=updates)
for epoch in range(epochs):
    model.train()
    total_loss = 0
    for step, batch in enumerate(train_dataloader):
        outputs = model(**batch)
        loss = outputs.loss
        total_loss += loss.detach().to(torch.get_default_dtype())
        loss = loss / accumulation
        loss.backward()
        if step % accumulation == accumulation - 1 or step == len(train_dataloader) - 1:
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
    model.eval()
    predictions, references = [], []
    for batch in eval_dataloader:
        with torch.no_grad():
            outputs = model(**batch)
        predictions += outputs.logits.argmax(dim=-1).tolist()
        references += batch["labels"].tolist()
    right = sum(p == r for p, r in zip(predictions, references)) / len(references)
    print(
        f"epoch {epoch}: accuracy {right:.4f} f1 {f1_score(references, predictions):.4f} "
        f"train_loss {total_loss.item() / len(train_dataloader):.6f}"
    )
model.save_pretrained("model")
