"""Hugging Face's own Trainer: a small GPT-2 from a config, text that comes with Python, checkpoints, evaluation."""

import argparse
import os
import this

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2ForSequenceClassification, Trainer, TrainingArguments, set_seed


class Words(Dataset):
    """Is a word followed by punctuation? Letters are the tokens."""

    def __init__(self, words, length=12):
        self.rows = []
        for word in words:
            letters = [ord(c) - 95 for c in word.lower() if "a" <= c <= "z"][:length]
            ids = [1, *letters, *[0] * (length - len(letters))]
            self.rows.append((ids, int(not word[-1:].isalpha())))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        ids, label = self.rows[index]
        ids = torch.tensor(ids)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": label}


def compute_metrics(evaluated):
    logits, labels = evaluated
    return {"accuracy": float(np.mean(np.argmax(logits, axis=-1) == labels))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-2)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    set_seed(0)
    text = "".join(this.d.get(c, c) for c in this.s)
    words = text.split()
    train, test = Words(words[:110]), Words(words[110:])
    config = GPT2Config(
        vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2, num_labels=2, pad_token_id=0,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = GPT2ForSequenceClassification(config).to(torch.get_default_dtype())
    arguments = TrainingArguments(
        output_dir=os.path.join(args.out, "trainer"),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=20,
        learning_rate=args.lr,
        optim="sgd",
        lr_scheduler_type="linear",
        warmup_steps=3,
        logging_steps=5,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=train, eval_dataset=test, compute_metrics=compute_metrics
    )
    print("devices", trainer.args.world_size, "batch", trainer.args.train_batch_size)
    trainer.train()
    for entry in trainer.state.log_history:
        kept = {k: v for k, v in entry.items() if not k.endswith(("runtime", "per_second"))}
        print({k: round(v, 5) if isinstance(v, float) else v for k, v in sorted(kept.items())})
    print({k: round(v, 5) for k, v in trainer.evaluate().items() if k in ("eval_loss", "eval_accuracy")})
    output = trainer.predict(test)
    np.save(os.path.join(args.out, "logits.npy"), output.predictions)
    trainer.save_model(os.path.join(args.out, "final"))
    again = GPT2ForSequenceClassification.from_pretrained(os.path.join(args.out, "final"))
    print("loads again", sum(p.numel() for p in again.parameters()))
    print(sorted(os.listdir(os.path.join(args.out, "trainer"))))


if __name__ == "__main__":
    main()
