"""A module that computes its own loss: `model(**batch)` returns `.loss` and `.logits`."""

import argparse
import inspect
import json
import os
import random
import re
import string
import tokenize
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
from torch.utils.data import DataLoader


@dataclass
class SequenceClassifierOutput:
    loss: Optional[torch.Tensor] = None
    logits: Optional[torch.Tensor] = None


class SequenceClassifier(nn.Module):
    def __init__(self, vocab_size, hidden_size=32, num_labels=2):
        super().__init__()
        self.num_labels = num_labels
        self.embeddings = nn.Embedding(vocab_size, hidden_size, padding_idx=0)
        self.norm = nn.LayerNorm(hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(hidden_size, num_labels)

    def forward(self, input_ids, attention_mask=None, labels=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        hidden = self.norm(self.embeddings(input_ids))
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        pooled = self.dropout(torch.tanh(self.dense(pooled)))
        logits = self.classifier(pooled)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.view(-1, self.num_labels), labels.view(-1))
        return SequenceClassifierOutput(loss=loss, logits=logits)


def build_examples(max_length):
    vocab, examples = {"[PAD]": 0}, []
    for label, module in enumerate((string, tokenize)):
        for line in inspect.getsource(module).splitlines():
            tokens = re.findall(r"\w+|[^\w\s]", line)[:max_length]
            if len(tokens) > 1:
                ids = [vocab.setdefault(t, len(vocab)) for t in tokens]
                padding = [0] * (max_length - len(ids))
                mask = [1] * len(ids) + padding
                examples.append(
                    {
                        "input_ids": ids + padding,
                        "attention_mask": mask,
                        "labels": label,
                    }
                )
    random.shuffle(examples)
    return examples, vocab


def collator(features):
    return {key: torch.tensor([f[key] for f in features]) for key in features[0]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=20)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    examples, vocab = build_examples(args.max_length)
    cut = int(0.8 * len(examples))
    train_dataloader = DataLoader(examples[:cut], args.batch_size, shuffle=True, collate_fn=collator)
    eval_dataloader = DataLoader(examples[cut:], args.batch_size, collate_fn=collator)

    model = SequenceClassifier(len(vocab)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    steps = args.epochs * len(train_dataloader)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    for epoch in range(args.epochs):
        model.train()
        total_loss = 0
        for batch in train_dataloader:
            batch = {k: v.to(device) for k, v in batch.items()}
            outputs = model(**batch)
            loss = outputs.loss
            total_loss += loss.detach()
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

        model.eval()
        predictions, references, eval_loss = [], [], 0.0
        for batch in eval_dataloader:
            batch = {k: v.to(device) for k, v in batch.items()}
            with torch.no_grad():
                outputs = model(**batch)
            eval_loss += outputs.loss.item()
            predictions.extend(outputs.logits.argmax(dim=-1).tolist())
            references.extend(batch["labels"].tolist())
        accuracy = sum(p == r for p, r in zip(predictions, references)) / len(references)
        result = {
            "epoch": epoch,
            "train_loss": round(total_loss.item() / len(train_dataloader), 6),
            "eval_loss": round(eval_loss / len(eval_dataloader), 6),
            "accuracy": accuracy,
        }
        print(result)

    with open(os.path.join(args.out, "all_results.json"), "w") as f:
        json.dump(result, f)
    torch.save(model.state_dict(), os.path.join(args.out, "pytorch_model.bin"))


if __name__ == "__main__":
    main()
