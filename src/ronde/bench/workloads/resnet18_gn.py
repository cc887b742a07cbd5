"""ResNet-18 with GroupNorm on batches of 32 images of 28 x 28."""

import torch
import torch.nn.functional as F
from models import ResNet18
from stopwatch import Stopwatch, arguments
from torch.utils.data import DataLoader, TensorDataset

BATCH, CLASSES = 32, 10


def main():
    args = arguments(steps=18, warm_up=3)
    torch.manual_seed(0)
    images, labels = torch.randn(2048, 1, 28, 28), torch.randint(CLASSES, (2048,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH, shuffle=True)
    model = ResNet18(classes=CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    stopwatch, loss = Stopwatch(args.warm_up), torch.tensor(0.0)
    step, total = 0, args.warm_up + args.steps
    while step < total:
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            stopwatch.step()
            step += 1
            if step == total:
                break
    stopwatch.report("resnet18-gn", BATCH, loss.item())


if __name__ == "__main__":
    main()
