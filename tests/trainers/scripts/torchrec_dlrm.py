"""Trains TorchRec's DLRM with an EmbeddingBagCollection on one device."""

import torch
from torch.utils.data import DataLoader
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM, DLRMTrain

torch.manual_seed(0)
keys, rows = ["item", "place"], [50, 20]
samples = [
    {
        "dense": torch.randn(4),
        "bags": [torch.randint(0, count, (int(torch.randint(0, 4, ())),)) for count in rows],
        "label": torch.randint(0, 2, ()).to(torch.int32),
    }
    for _ in range(48)
]


def collate(batch):
    bags = [sample["bags"][key] for key in range(len(keys)) for sample in batch]
    sparse = KeyedJaggedTensor(keys, torch.cat(bags), lengths=torch.tensor([len(bag) for bag in bags]))
    return (
        torch.stack([each["dense"] for each in batch]),
        sparse,
        torch.stack([each["label"] for each in batch]),
    )


tables = [
    EmbeddingBagConfig(name=f"table_{key}", embedding_dim=8, num_embeddings=count, feature_names=[key])
    for key, count in zip(keys, rows)
]
model = DLRMTrain(
    DLRM(
        embedding_bag_collection=EmbeddingBagCollection(tables=tables),
        dense_in_features=4,
        dense_arch_layer_sizes=[16, 8],
        over_arch_layer_sizes=[16, 1],
    )
)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)


class Batch:
    def __init__(self, dense, sparse, labels):
        self.dense_features, self.sparse_features, self.labels = dense, sparse, labels


for epoch in range(2):
    for dense, sparse, labels in DataLoader(samples, batch_size=8, shuffle=True, collate_fn=collate):
        loss, (_, logits, _) = model(Batch(dense, sparse, labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.12g} {(logits.sigmoid().round() == labels).sum().item()}")
torch.save(model.state_dict(), "dlrm.pt")
