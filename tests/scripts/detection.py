"""A one-stage detector of digits in larger pictures: lists of images and of targets with uneven boxes."""

import argparse
import json
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    """One to four digits in a picture of 24 x 24, each in its own cell of 8 x 8."""

    def __init__(self, scenes, seed):
        digits = load_digits()
        self.digits = torch.tensor(digits.images / 16.0, dtype=torch.get_default_dtype())
        self.labels = torch.tensor(digits.target)
        generator = torch.Generator().manual_seed(seed)
        self.plans = []
        for _ in range(scenes):
            count = int(torch.randint(1, 5, (1,), generator=generator))
            cells = torch.randperm(9, generator=generator)[:count]
            self.plans.append((cells, torch.randint(len(digits.target), (count,), generator=generator)))

    def __len__(self):
        return len(self.plans)

    def __getitem__(self, index):
        cells, chosen = self.plans[index]
        image, boxes = self.digits.new_zeros(1, 24, 24), []
        for cell, digit in zip(cells.tolist(), chosen.tolist()):
            top, left = 8 * (cell // 3), 8 * (cell % 3)
            image[0, top : top + 8, left : left + 8] = self.digits[digit]
            boxes.append([left, top, left + 8, top + 8])
        target = {
            "boxes": torch.tensor(boxes, dtype=image.dtype),
            "labels": self.labels[chosen],
            "image_id": index,
        }
        return image, target


def collate(batch):
    return tuple(zip(*batch))


class Detector(nn.Module):
    """In training a dict of losses, in evaluation a list of dicts with boxes, labels and scores."""

    def __init__(self, width=16):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=4), nn.SiLU(), nn.Conv2d(width, width, 2, stride=2), nn.SiLU()
        )
        self.classify = nn.Conv2d(width, 11, 1)
        self.regress = nn.Conv2d(width, 4, 1)

    def forward(self, images, targets=None):
        features = self.backbone(torch.stack(images))
        logits, deltas = self.classify(features).flatten(2), self.regress(features).flatten(2)
        if self.training:
            return self.losses(logits, deltas, targets)
        return self.detections(logits, deltas)

    def losses(self, logits, deltas, targets):
        wanted = torch.zeros(len(targets), 9, dtype=torch.int64, device=logits.device)
        box_losses, count = [], 0
        for i, target in enumerate(targets):
            cells = (target["boxes"][:, 1] // 8 * 3 + target["boxes"][:, 0] // 8).long()
            wanted[i, cells] = target["labels"] + 1
            predicted = deltas[i][:, cells].t()
            box_losses.append(F.smooth_l1_loss(predicted, target["boxes"] / 24, reduction="sum"))
            count += len(cells)
        return {
            "classification": F.cross_entropy(logits, wanted),
            "boxes": torch.stack(box_losses).sum() / count,
        }

    def detections(self, logits, deltas):
        results = []
        for scores, boxes in zip(logits.softmax(1), deltas):
            best, label = scores[1:].max(0)
            kept = best > 0.15
            results.append({"boxes": boxes.t()[kept] * 24, "labels": label[kept], "scores": best[kept]})
        return results


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    torch.manual_seed(33)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(Scenes(100, 1), args.batch_size, shuffle=True, collate_fn=collate)
    test_loader = DataLoader(Scenes(20, 2), args.batch_size, collate_fn=collate)
    model = Detector().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    found = []
    for epoch in range(args.epochs):
        model.train()
        for i, (images, targets) in enumerate(train_loader):
            images = list(image.to(device) for image in images)
            targets = [
                {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets
            ]
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
            optimizer.zero_grad()
            losses.backward()
            optimizer.step()
            if i % 4 == 0:
                values = {k: round(v.item(), 6) for k, v in loss_dict.items()}
                print(epoch, i, values, sum(len(t["boxes"]) for t in targets))
        model.eval()
        with torch.no_grad():
            for images, targets in test_loader:
                outputs = model([image.to(device) for image in images])
                for target, output in zip(targets, outputs):
                    best = output["scores"].max().item() if len(output["scores"]) else 0.0
                    found.append([epoch, target["image_id"], len(output["boxes"]), round(best, 6)])
        print(f"epoch {epoch}: {sum(n for e, _, n, _ in found if e == epoch)} boxes")
    with open(os.path.join(args.out, "found.json"), "w") as f:
        json.dump(found, f)
    torch.save(model.state_dict(), os.path.join(args.out, "detector.pt"))


if __name__ == "__main__":
    main()
