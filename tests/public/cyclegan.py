"""As PyTorch-GAN's cyclegan: four nets, a buffer of past pictures, chained parameters, a learning rate by lambda."""

import itertools
import random

import torch
import torch.nn as nn
from sklearn.datasets import load_digits


class LambdaLR:
    def __init__(self, n_epochs, decay_start_epoch):
        self.n_epochs, self.decay_start_epoch = n_epochs, decay_start_epoch

    def step(self, epoch):
        return 1.0 - max(0, epoch - self.decay_start_epoch) / (self.n_epochs - self.decay_start_epoch)


class ReplayBuffer:
    def __init__(self, max_size=20):
        self.max_size, self.data = max_size, []

    def push_and_pop(self, data):
        to_return = []
        for element in data.data:
            element = torch.unsqueeze(element, 0)
            if len(self.data) < self.max_size:
                self.data.append(element)
                to_return.append(element)
            elif random.uniform(0, 1) > 0.5:
                i = random.randint(0, self.max_size - 1)
                to_return.append(self.data[i].clone())
                self.data[i] = element
            else:
                to_return.append(element)
        return torch.cat(to_return)


def generator():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.InstanceNorm2d(6),
        nn.SiLU(),
        nn.Conv2d(6, 1, 3, padding=1),
        nn.Tanh(),
    )


def discriminator():
    return nn.Sequential(
        nn.Conv2d(1, 6, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(6, 1, 3, padding=1)
    )


torch.manual_seed(7)
random.seed(7)
pictures = torch.tensor(load_digits().images / 8 - 1, dtype=torch.get_default_dtype())[:, None]
pairs = torch.utils.data.TensorDataset(pictures[:120], pictures[120:240].flip(-1))
dataloader = torch.utils.data.DataLoader(pairs, batch_size=12, shuffle=True)
G_AB, G_BA, D_A, D_B = generator(), generator(), discriminator(), discriminator()
criterion_GAN, criterion_cycle, criterion_identity = nn.MSELoss(), nn.L1Loss(), nn.L1Loss()
optimizer_G = torch.optim.SGD(itertools.chain(G_AB.parameters(), G_BA.parameters()), lr=0.02)
optimizer_D_A = torch.optim.SGD(D_A.parameters(), lr=0.02)
optimizer_D_B = torch.optim.SGD(D_B.parameters(), lr=0.02)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer_G, lr_lambda=LambdaLR(3, 1).step)
fake_A_buffer, fake_B_buffer = ReplayBuffer(), ReplayBuffer()
for epoch in range(3):
    for i, batch in enumerate(dataloader):
        real_A, real_B = batch
        valid = torch.ones((real_A.size(0), 1, 4, 4), requires_grad=False)
        fake = torch.zeros((real_A.size(0), 1, 4, 4), requires_grad=False)
        optimizer_G.zero_grad()
        loss_identity = (
            criterion_identity(G_BA(real_A), real_A) + criterion_identity(G_AB(real_B), real_B)
        ) / 2
        fake_B, fake_A = G_AB(real_A), G_BA(real_B)
        loss_GAN = (criterion_GAN(D_B(fake_B), valid) + criterion_GAN(D_A(fake_A), valid)) / 2
        loss_cycle = (criterion_cycle(G_BA(fake_B), real_A) + criterion_cycle(G_AB(fake_A), real_B)) / 2
        loss_G = loss_GAN + 10.0 * loss_cycle + 5.0 * loss_identity
        loss_G.backward()
        optimizer_G.step()
        loss_D = 0
        for net, optimizer, real, made, buffer in (
            (D_A, optimizer_D_A, real_A, fake_A, fake_A_buffer),
            (D_B, optimizer_D_B, real_B, fake_B, fake_B_buffer),
        ):
            optimizer.zero_grad()
            made_ = buffer.push_and_pop(made)
            loss = (criterion_GAN(net(real), valid) + criterion_GAN(net(made_.detach()), fake)) / 2
            loss.backward()
            optimizer.step()
            loss_D += loss / 2
        if i % 4 == 0:
            print(f"[Epoch {epoch}] [Batch {i}] [D loss: {loss_D.item():.6f}] [G loss: {loss_G.item():.6f}]")
    schedule.step()
