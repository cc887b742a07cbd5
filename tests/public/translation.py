"""As pytorch/examples language_translation: nn.Transformer on sequence-first batches, masks, greedy decoding."""

import math

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD, BOS, EOS = 1, 2, 3


class PositionalEncoding(nn.Module):
    def __init__(self, emb_size, dropout, maxlen=50):
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pos_embedding = torch.zeros((maxlen, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pos_embedding", pos_embedding.unsqueeze(-2))

    def forward(self, token_embedding):
        return self.dropout(token_embedding + self.pos_embedding[: token_embedding.size(0), :])


class Translator(nn.Module):
    def __init__(self, words=20, embed=16):
        super().__init__()
        self.src_embedding = nn.Embedding(words, embed)
        self.tgt_embedding = nn.Embedding(words, embed)
        self.pos_enc = PositionalEncoding(embed, 0.1)
        self.transformer = nn.Transformer(embed, 2, 1, 1, 32, dropout=0.1)
        self.ff = nn.Linear(embed, words)
        self.scale = math.sqrt(embed)

    def forward(
        self, src, trg, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask, memory_key_padding_mask
    ):
        src_emb = self.pos_enc(self.src_embedding(src) * self.scale)
        tgt_emb = self.pos_enc(self.tgt_embedding(trg) * self.scale)
        outs = self.transformer(
            src_emb,
            tgt_emb,
            src_mask,
            tgt_mask,
            None,
            src_padding_mask,
            tgt_padding_mask,
            memory_key_padding_mask,
        )
        return self.ff(outs)

    def encode(self, src, src_mask):
        return self.transformer.encoder(self.pos_enc(self.src_embedding(src) * self.scale), src_mask)

    def decode(self, tgt, memory, tgt_mask):
        return self.transformer.decoder(self.pos_enc(self.tgt_embedding(tgt) * self.scale), memory, tgt_mask)


def create_mask(src, tgt):
    src_len, tgt_len = src.shape[0], tgt.shape[0]
    tgt_mask = torch.triu(torch.ones((tgt_len, tgt_len)), diagonal=1).bool()
    src_mask = torch.zeros((src_len, src_len)).type(torch.bool)
    return src_mask, tgt_mask, (src == PAD).transpose(0, 1), (tgt == PAD).transpose(0, 1)


def pairs(count, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 8, (count,), generator=generator).tolist()
    return [torch.randint(4, 20, (n,), generator=generator) for n in lengths]


def collate(batch):
    ends = torch.tensor([BOS]), torch.tensor([EOS])
    src = [torch.cat((ends[0], words, ends[1])) for words in batch]
    tgt = [torch.cat((ends[0], words.flip(0), ends[1])) for words in batch]
    return pad_sequence(src, padding_value=PAD), pad_sequence(tgt, padding_value=PAD)


torch.manual_seed(0)
model = Translator()
for p in model.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    model.train()
    losses = 0
    loader = DataLoader(pairs(160, 1), batch_size=16, shuffle=True, collate_fn=collate)
    for src, tgt in loader:
        tgt_input = tgt[:-1, :]
        src_mask, tgt_mask, src_pad, tgt_pad = create_mask(src, tgt_input)
        logits = model(src, tgt_input, src_mask, tgt_mask, src_pad, tgt_pad, src_pad)
        optimizer.zero_grad()
        tgt_out = tgt[1:, :]
        loss = criterion(logits.reshape(-1, logits.shape[-1]), tgt_out.reshape(-1))
        loss.backward()
        optimizer.step()
        losses += loss.item()
    print(f"Epoch: {epoch}, Train loss: {losses / len(list(loader)):.3f}")
model.eval()
with torch.no_grad():
    src = collate(pairs(1, 5))[0]
    memory = model.encode(src, torch.zeros(len(src), len(src)).type(torch.bool))
    ys = torch.ones(1, 1).fill_(BOS).type(torch.long)
    for _ in range(len(src) + 3):
        mask = torch.triu(torch.ones(len(ys), len(ys)), 1).type(torch.bool)
        prob = model.ff(model.decode(ys, memory, mask).transpose(0, 1)[:, -1])
        next_word = torch.max(prob, dim=1)[1].item()
        ys = torch.cat([ys, torch.ones(1, 1).type_as(src.data).fill_(next_word)], dim=0)
        if next_word == EOS:
            break
print("translated:", ys.flatten().tolist())
