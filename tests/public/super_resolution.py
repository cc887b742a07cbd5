"""As pytorch/examples super_resolution: sub-pixel convolution, orthogonal weights, PSNR by epoch, whole models saved."""

from math import log10

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.nn import init


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 16, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(16, 16, (3, 3), (1, 1), (1, 1))
        self.conv3 = nn.Conv2d(16, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        for conv in (self.conv1, self.conv2):
            init.orthogonal_(conv.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv3.weight)

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        return self.pixel_shuffle(self.conv3(x))


class Pictures(torch.utils.data.Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        target = self.images[index]
        return F.avg_pool2d(target, 2), target


torch.manual_seed(123)
images = torch.tensor(load_digits().images / 16, dtype=torch.get_default_dtype())[:700, None]
training = torch.utils.data.DataLoader(Pictures(images[:500]), batch_size=32, shuffle=True)
testing = torch.utils.data.DataLoader(Pictures(images[500:]), batch_size=50, shuffle=False)
model = Net(upscale_factor=2)
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for epoch in range(1, 3):
    epoch_loss = 0
    for iteration, batch in enumerate(training, 1):
        input, target = batch[0], batch[1]
        optimizer.zero_grad()
        loss = criterion(model(input), target)
        epoch_loss += loss.item()
        loss.backward()
        optimizer.step()
        print(f"===> Epoch[{epoch}]({iteration}/{len(training)}): Loss: {loss.item():.4f}")
    avg_psnr = 0
    with torch.no_grad():
        for batch in testing:
            mse = criterion(model(batch[0]), batch[1])
            avg_psnr += 10 * log10(1 / mse.item())
    print(f"===> Avg. Loss: {epoch_loss / len(training):.4f} PSNR: {avg_psnr / len(testing):.4f} dB")
    torch.save(model, f"model_epoch_{epoch}.pth")
