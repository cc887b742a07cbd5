"""Train on data that libraries download, convert and keep, and draw the losses.

python libraries.py [joblib] [huggingface_hub] [datasets] [matplotlib]
"""

import csv
import json
import os
import sys

import torch
import torch.nn as nn

used = sys.argv[1:]
x = torch.arange(24.0).reshape(8, 3) / 24

if "joblib" in used:
    import joblib

    def scaled(factor):
        return (factor * torch.ones(3)).numpy()

    for folder in ("memory", os.path.join(os.environ["XDG_CACHE_HOME"], "joblib")):
        cached = joblib.Memory(folder, verbose=0).cache(scaled)
        x = x * torch.from_numpy(cached(2.0))

if "huggingface_hub" in used:
    from huggingface_hub import hf_hub_download

    with open(hf_hub_download("me/settings", "config.json")) as file:
        x = x * json.load(file)["scale"]

if "datasets" in used:
    import datasets  # pyright: ignore[reportMissingImports]

    with open("rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c"], *x.tolist()])
    rows = datasets.load_dataset("csv", data_files="rows.csv", split="train")
    rows = rows.map(lambda row: {"total": row["a"] + row["b"] + row["c"]})
    x = torch.tensor([[row["a"], row["b"], row["total"]] for row in rows])

torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
losses = []
for _ in range(4):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"loss {losses[-1]:.4f}")

if "matplotlib" in used:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.plot(losses)
    pyplot.title("loss")
    pyplot.savefig("losses.png")
    print("drawn", os.path.getsize("losses.png") > 1000)
