"""WGAN-GP: a gradient penalty by `torch.autograd.grad(create_graph=True)`, then R1 and path length."""

import argparse
import os

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch import autograd
from torch.utils.data import DataLoader, TensorDataset


class Generator(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(latent, 48), nn.BatchNorm1d(48), nn.LeakyReLU(0.2), nn.Linear(48, 64), nn.Sigmoid()
        )

    def forward(self, z):
        return self.model(z).view(z.size(0), 8, 8)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 48), nn.Softplus(), nn.Linear(48, 24), nn.Softplus(), nn.Linear(24, 1)
        )

    def forward(self, img):
        return self.model(img)


def compute_gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1, 1, device=real.device)
    interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    d_interpolates = critic(interpolates)
    gradients = autograd.grad(
        outputs=d_interpolates,
        inputs=interpolates,
        grad_outputs=torch.ones_like(d_interpolates),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    gradients = gradients.view(gradients.size(0), -1)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


def r1_penalty(critic, real):
    real = real.detach().requires_grad_()
    (gradient,) = autograd.grad(critic(real).sum(), real, create_graph=True)
    return gradient.pow(2).flatten(1).sum(1).mean()


def path_length(generator, z):
    z = z.detach().requires_grad_()
    images = generator(z)
    noise = torch.randn_like(images) / 8
    (gradient,) = autograd.grad((images * noise).sum(), z, create_graph=True)
    return (gradient.pow(2).sum(1) + 1e-8).sqrt()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--n-critic", type=int, default=3)
    parser.add_argument("--lambda-gp", type=float, default=10.0)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--latent-dim", type=int, default=8)
    parser.add_argument("--out", default=".")
    opt = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = torch.tensor(load_digits().images / 16.0, dtype=torch.get_default_dtype())
    dataloader = DataLoader(TensorDataset(images[:1250]), opt.batch_size, shuffle=True)
    generator, critic = Generator(opt.latent_dim).to(device), Critic().to(device)
    optimizer_G = torch.optim.RMSprop(generator.parameters(), lr=opt.lr / 4, eps=1e-4)
    optimizer_D = torch.optim.RMSprop(critic.parameters(), lr=opt.lr / 4, eps=1e-4)
    mean_length = torch.zeros((), device=device)
    for epoch in range(opt.epochs):
        for i, (real,) in enumerate(dataloader):
            real = real.to(device)
            optimizer_D.zero_grad()
            z = torch.randn(real.shape[0], opt.latent_dim, device=device)
            fake = generator(z)
            penalty = compute_gradient_penalty(critic, real.data, fake.data)
            d_loss = -torch.mean(critic(real)) + torch.mean(critic(fake.detach())) + opt.lambda_gp * penalty
            if i % 4 == 0:
                d_loss = d_loss + 0.1 * r1_penalty(critic, real)
            d_loss.backward()
            optimizer_D.step()
            if i % opt.n_critic == 0:
                optimizer_G.zero_grad()
                g_loss = -torch.mean(critic(generator(z)))
                lengths = path_length(generator, z[: len(z) // 2])
                mean_length = mean_length.lerp(lengths.mean().detach(), 0.1)
                g_loss = g_loss + 0.1 * (lengths - mean_length).pow(2).mean()
                g_loss.backward()
                optimizer_G.step()
                print(
                    f"[{epoch}/{i}] D {d_loss.item():.6f} G {g_loss.item():.6f} "
                    f"penalty {penalty.item():.6f} length {mean_length.item():.6f}"
                )
    with torch.no_grad():
        samples = generator.eval()(torch.randn(16, opt.latent_dim, device=device))
    torch.save(samples, os.path.join(opt.out, "samples.pt"))
    torch.save({"G": generator.state_dict(), "D": critic.state_dict()}, os.path.join(opt.out, "wgan_gp.pt"))


if __name__ == "__main__":
    main()
