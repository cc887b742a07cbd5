"""As pytorch/examples vision_transformer: patches, a class token, learnt positions, pre-norm blocks, argparse-free."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class PatchExtractor(nn.Module):
    def __init__(self, patch_size=2):
        super().__init__()
        self.patch_size = patch_size

    def forward(self, input_data):
        batch_size, channels, height, width = input_data.size()
        assert height % self.patch_size == 0 and width % self.patch_size == 0, "sizes must fit"
        num_patches = (height // self.patch_size) * (width // self.patch_size)
        patches = input_data.unfold(2, self.patch_size, self.patch_size)
        patches = patches.unfold(3, self.patch_size, self.patch_size).permute(0, 2, 3, 1, 4, 5).contiguous()
        return patches.view(batch_size, num_patches, -1)


class InputEmbedding(nn.Module):
    def __init__(self, latent=16, patches=16):
        super().__init__()
        self.extract = PatchExtractor()
        self.linear_projection = nn.Linear(4, latent)
        self.class_token = nn.Parameter(torch.randn(1, 1, latent))
        self.pos_embedding = nn.Parameter(torch.randn(1, patches + 1, latent))

    def forward(self, input_data):
        linear_projection = self.linear_projection(self.extract(input_data))
        b, _, _ = linear_projection.shape
        class_token = self.class_token.expand(b, -1, -1)
        return torch.cat((class_token, linear_projection), dim=1) + self.pos_embedding


class EncoderBlock(nn.Module):
    def __init__(self, latent=16, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(latent), nn.LayerNorm(latent)
        self.attention = nn.MultiheadAttention(latent, heads, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(latent, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, latent), nn.Dropout(0.1)
        )

    def forward(self, emb_patches):
        first_norm = self.norm1(emb_patches)
        attention_out = self.attention(first_norm, first_norm, first_norm)[0]
        first_added = attention_out + emb_patches
        return self.mlp(self.norm2(first_added)) + first_added


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = InputEmbedding()
        self.encoders = nn.ModuleList([EncoderBlock() for _ in range(2)])
        self.mlp_head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 10))

    def forward(self, test_input):
        enc_output = self.embedding(test_input)
        for layer in self.encoders:
            enc_output = layer(enc_output)
        return self.mlp_head(enc_output[:, 0])


torch.manual_seed(3)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.get_default_dtype())[:, None]
labels = torch.tensor(digits.target)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images[:600], labels[:600]), batch_size=50, shuffle=True
)
model = ViT()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    running = 0.0
    for batch_idx, (pictures, targets) in enumerate(loader):
        logits = model(pictures)
        loss = criterion(logits, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        running += loss.item() * pictures.size(0)
    print(f"Epoch {epoch} loss {running / len(loader.dataset):.6f}")
model.eval()
with torch.inference_mode():
    predicted = F.softmax(model(images[600:800]), dim=1).argmax(dim=1)
print("accuracy", (predicted == labels[600:800]).sum().item() / 200)
