"""Tiny Hugging Face models from a config, nothing downloaded: they return their own losses."""

import argparse
import inspect
import os
import re
import shlex
import string

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel
from transformers import get_linear_schedule_with_warmup


def read(max_length):
    vocab, rows = {"[PAD]": 0, "[CLS]": 1}, []
    for label, module in enumerate((string, shlex)):
        for line in inspect.getsource(module).splitlines():
            tokens = ["[CLS]", *re.findall(r"\w+|[^\w\s]", line)][:max_length]
            if len(tokens) > 3:
                rows.append({"input_ids": [vocab.setdefault(t, len(vocab)) for t in tokens], "label": label})
    return rows, vocab


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    ids = torch.zeros(len(features), longest, dtype=torch.long)
    mask = torch.zeros(len(features), longest, dtype=torch.long)
    for i, f in enumerate(features):
        ids[i, : len(f["input_ids"])] = torch.tensor(f["input_ids"])
        mask[i, : len(f["input_ids"])] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([f["label"] for f in features])}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(40)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows, vocab = read(args.max_length)
    loader = DataLoader(rows, args.batch_size, shuffle=True, collate_fn=collate)

    config = BertConfig(
        vocab_size=len(vocab), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=args.max_length, num_labels=2,
    )  # fmt: skip
    model = BertForSequenceClassification(config).to(device, torch.get_default_dtype())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = get_linear_schedule_with_warmup(optimizer, 3, args.epochs * len(loader))
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for batch in loader:
            batch = {k: v.to(device) for k, v in batch.items()}
            outputs = model(**batch)
            outputs.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            total += outputs.loss.item()
        model.eval()
        right = 0
        with torch.no_grad():
            for batch in loader:
                logits = model(batch["input_ids"].to(device), batch["attention_mask"].to(device)).logits
                right += (logits.argmax(-1).cpu() == batch["labels"]).sum().item()
        print(f"bert {epoch}: loss {total / len(loader):.6f} right {right} of {len(rows)}")
    torch.save(model.state_dict(), os.path.join(args.out, "bert.pt"))

    config = GPT2Config(
        vocab_size=len(vocab), n_positions=args.max_length, n_embd=32, n_layer=2, n_head=2,
        bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(device, torch.get_default_dtype())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    model.train()
    for step, batch in enumerate(loader):
        ids, mask = batch["input_ids"].to(device), batch["attention_mask"].to(device)
        labels = ids.masked_fill(mask == 0, -100)
        output = model(input_ids=ids, attention_mask=mask, labels=labels)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"gpt2 {step}: {output.loss.item():.6f} {tuple(output.logits.shape)}")
    model.eval()
    prompt = torch.tensor([rows[0]["input_ids"][:3], rows[-1]["input_ids"][:3]], device=device)
    mask = torch.ones_like(prompt)
    text = model.generate(prompt, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0)
    print("generated", text.tolist())
    torch.save(model.state_dict(), os.path.join(args.out, "gpt2.pt"))


if __name__ == "__main__":
    main()
