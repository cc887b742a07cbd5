"""Two recommenders on two data sets, from raw data to AUC: an ordinary training script for one device.

    python examples/recommender/train.py --model wide-deep --data movielens
    ronde run --ranks 2 --plan hybrid examples/recommender/train.py --model dlrm --data clicks

The last tenth of the samples, in time, is held out. Settings are chosen with --validate, by the tenth before
it: then a model learns from eight tenths, and the last one is not looked at. Beside the model's AUC stands
that of popularity: the score of a sample is then the share of clicks that its item, or the field that does
best, had in training.
"""

import argparse
from pathlib import Path

import click_log
import movielens
import torch
import torch.nn.functional as F
from auc import auc
from dlrm import DLRM
from popularity import popularity
from torch.utils.data import DataLoader
from wide_and_deep import WideAndDeep

MODELS = {"wide-deep": WideAndDeep, "dlrm": DLRM}
EPOCHS = {"movielens": 2, "clicks": 1}


def load(args):
    if args.data == "movielens":
        try:
            return movielens.read(movielens.wheel(args.cache))
        except movielens.NoData as error:
            raise SystemExit(f"{error}.") from None
    samples, truth = click_log.clicks(args.samples, seed=args.seed)
    learnt, held_out = map(len, samples.split(args.validate))
    tested = slice(learnt, learnt + held_out)
    print(f"the teacher that made the clicks: AUC {auc(truth[tested], samples.clicked[tested]):.4f}")
    return samples


def train_epoch(model, loader, optimizer):
    model.train()
    total, seen = 0.0, 0
    for dense, ids, clicked in loader:
        loss = F.binary_cross_entropy_with_logits(model(dense, ids), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(clicked)
        seen += len(clicked)
    return total / seen


@torch.no_grad()
def score(model, test_set):
    model.eval()
    return torch.cat([model(dense, ids) for dense, ids, _ in DataLoader(test_set, 2048)])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="wide-deep")
    parser.add_argument("--data", choices=EPOCHS, default="movielens")
    parser.add_argument("--epochs", type=int, help="2 of movielens; one of clicks, as they came")
    parser.add_argument("--samples", type=int, default=220_000, help="of the click log")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3, help="of the perceptrons")
    parser.add_argument("--double", action="store_true", help="double precision")
    parser.add_argument("--validate", action="store_true", help="by the tenth before the one held out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path("demo-out"), help="where MovieLens-100K is kept")
    parser.add_argument("--output", type=Path, default=Path("demo-out"))
    args = parser.parse_args()

    torch.set_default_dtype(torch.float64 if args.double else torch.float32)
    torch.manual_seed(args.seed)
    samples = load(args)
    train_set, test_set = samples.split(args.validate)
    print(f"{args.data}: {len(train_set)} samples to learn from, {len(test_set)} later ones to be tested on")
    print(f"popularity: AUC {popularity(train_set, test_set):.4f}")

    model = MODELS[args.model](samples.dense.shape[1], samples.ids.shape[1], samples.crosses)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    epochs = args.epochs or EPOCHS[args.data]
    loader = DataLoader(train_set, args.batch_size, shuffle=epochs > 1)
    for epoch in range(1, epochs + 1):
        loss = train_epoch(model, loader, optimizer)
        print(f"epoch {epoch}   loss {loss:.4f}", flush=True)
    scores = score(model, test_set)
    dense, ids, clicked = test_set.tensors
    print(f"{args.model}: AUC {auc(scores.numpy(), clicked.numpy()):.9f}")
    args.output.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.output / f"{args.model}-{args.data}.pt")
    few = {name: values[:3].clone() for name, values in (("dense", dense), ("ids", ids), ("outputs", scores))}
    torch.save(few, args.output / f"{args.model}-{args.data}-held-out.pt")


if __name__ == "__main__":
    main()
