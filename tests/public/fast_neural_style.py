"""As pytorch/examples fast_neural_style: instance norm, Gram matrices, a frozen net that returns a named tuple."""

from collections import namedtuple

import torch
import torch.nn as nn
from sklearn.datasets import load_digits


class ConvLayer(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride):
        super().__init__()
        self.reflection_pad = nn.ReflectionPad2d(kernel_size // 2)
        self.conv2d = nn.Conv2d(in_channels, out_channels, kernel_size, stride)

    def forward(self, x):
        return self.conv2d(self.reflection_pad(x))


class UpsampleConvLayer(ConvLayer):
    def forward(self, x):
        x = nn.functional.interpolate(x, mode="nearest", scale_factor=2)
        return super().forward(x)


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = ConvLayer(channels, channels, 3, 1)
        self.in1 = nn.InstanceNorm2d(channels, affine=True)
        self.conv2 = ConvLayer(channels, channels, 3, 1)
        self.in2 = nn.InstanceNorm2d(channels, affine=True)
        self.relu = nn.ReLU()

    def forward(self, x):
        out = self.relu(self.in1(self.conv1(x)))
        return self.in2(self.conv2(out)) + x


class TransformerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = ConvLayer(1, 6, 3, 1)
        self.in1 = nn.InstanceNorm2d(6, affine=True)
        self.down = ConvLayer(6, 8, 3, 2)
        self.in2 = nn.InstanceNorm2d(8, affine=True)
        self.res1 = ResidualBlock(8)
        self.deconv1 = UpsampleConvLayer(8, 6, 3, 1)
        self.deconv2 = ConvLayer(6, 1, 3, 1)
        self.relu = nn.ReLU()

    def forward(self, X):
        y = self.relu(self.in1(self.conv1(X)))
        y = self.relu(self.in2(self.down(y)))
        return self.deconv2(self.relu(self.deconv1(self.res1(y))))


class Features(nn.Module):
    def __init__(self, requires_grad=False):
        super().__init__()
        self.slice1 = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU())
        self.slice2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU())
        if not requires_grad:
            for param in self.parameters():
                param.requires_grad = False

    def forward(self, X):
        h1 = self.slice1(X)
        h2 = self.slice2(h1)
        outputs = namedtuple("Outputs", ["relu1", "relu2"])
        return outputs(h1, h2)


def gram_matrix(y):
    (b, ch, h, w) = y.size()
    features = y.view(b, ch, w * h)
    return features.bmm(features.transpose(1, 2)) / (ch * h * w)


def normalize_batch(batch):
    mean = batch.new_tensor([0.3]).view(-1, 1, 1)
    std = batch.new_tensor([0.4]).view(-1, 1, 1)
    return (batch - mean) / std


torch.manual_seed(42)
images = torch.tensor(load_digits().images / 16, dtype=torch.get_default_dtype())[:240, None]
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images), batch_size=16)
transformer, vgg = TransformerNet(), Features()
optimizer = torch.optim.SGD(transformer.parameters(), lr=1e-3)
mse_loss = nn.MSELoss()
style = images[7].repeat(16, 1, 1, 1)
gram_style = [gram_matrix(y) for y in vgg(normalize_batch(style))]
for e in range(2):
    transformer.train()
    agg_content, agg_style, count = 0.0, 0.0, 0
    for batch_id, (x,) in enumerate(loader):
        n_batch = len(x)
        count += n_batch
        optimizer.zero_grad()
        y = transformer(x)
        y, x = normalize_batch(y), normalize_batch(x)
        features_y, features_x = vgg(y), vgg(x)
        content_loss = 10.0 * mse_loss(features_y.relu2, features_x.relu2)
        style_loss = 0.0
        for ft_y, gm_s in zip(features_y, gram_style):
            gm_y = gram_matrix(ft_y)
            style_loss += mse_loss(gm_y, gm_s[:n_batch, :, :])
        style_loss *= 100.0
        total_loss = content_loss + style_loss
        total_loss.backward()
        optimizer.step()
        agg_content += content_loss.item()
        agg_style += style_loss.item()
    print(f"Epoch {e + 1}: [{count}/{len(images)}] content {agg_content:.6f} style {agg_style:.6f}")
transformer.eval().cpu()
torch.save(transformer.state_dict(), "style.model")
