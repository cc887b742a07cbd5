"""As the PyTorch tutorial on neural transfer: the picture is what is learnt, losses lie inside the model."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class ContentLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = target.detach()

    def forward(self, input):
        self.loss = F.mse_loss(input, self.target)
        return input


def gram_matrix(input):
    a, b, c, d = input.size()
    features = input.view(a * b, c * d)
    return torch.mm(features, features.t()).div(a * b * c * d)


class StyleLoss(nn.Module):
    def __init__(self, target_feature):
        super().__init__()
        self.target = gram_matrix(target_feature).detach()

    def forward(self, input):
        self.loss = F.mse_loss(gram_matrix(input), self.target)
        return input


torch.manual_seed(0)
images = torch.tensor(load_digits().images / 16, dtype=torch.get_default_dtype())
content_img, style_img = images[3][None, None], images[5][None, None]
layers = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)]
model, content_losses, style_losses = nn.Sequential(), [], []
for i, layer in enumerate(layers):
    model.add_module(f"layer_{i}", layer)
    if i == 0:
        style_losses.append(StyleLoss(model(style_img).detach()))
        model.add_module("style_loss", style_losses[-1])
    if i == 2:
        content_losses.append(ContentLoss(model(content_img).detach()))
        model.add_module("content_loss", content_losses[-1])
input_img = content_img.clone()
input_img.requires_grad_(True)
model.eval()
model.requires_grad_(False)
optimizer = torch.optim.LBFGS([input_img], lr=0.1)
run = [0]
while run[0] <= 60:

    def closure():
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        model(input_img)
        style_score, content_score = 0, 0
        for sl in style_losses:
            style_score += sl.loss
        for cl in content_losses:
            content_score += cl.loss
        style_score *= 1000
        loss = style_score + content_score
        loss.backward()
        run[0] += 1
        if run[0] % 20 == 0:
            print(f"run {run} Style Loss: {style_score.item():4f} Content Loss: {content_score.item():4f}")
        return style_score + content_score

    optimizer.step(closure)
with torch.no_grad():
    input_img.clamp_(0, 1)
torch.save(input_img, "picture.pt")
