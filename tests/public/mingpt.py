"""As karpathy/minGPT's sorting demo: a trainer with callbacks, an endless sampler with replacement, generate by loop."""

import math
from collections import defaultdict

import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from torch.utils.data.dataloader import DataLoader

D = 3


class SortDataset(Dataset):
    def __init__(self, split, length=4):
        self.split, self.length = split, length

    def __len__(self):
        return 2000

    def __getitem__(self, idx):
        generator = torch.Generator().manual_seed(idx + (10**6 if self.split == "test" else 0))
        inp = torch.randint(D, size=(self.length,), dtype=torch.long, generator=generator)
        sol = torch.sort(inp)[0]
        cat = torch.cat((inp, sol), dim=0)
        x, y = cat[:-1].clone(), cat[1:].clone()
        y[: self.length - 1] = -1
        return x, y


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(block, block)).view(1, 1, block, block))
        self.n_head, self.n_embd = n_head, n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self, n_embd, n_head, block):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, block)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(n_embd, 2 * n_embd), "c_proj": nn.Linear(2 * n_embd, n_embd), "act": nn.GELU()}
        )
        m = self.mlp
        self.mlpf = lambda x: m.c_proj(m.act(m.c_fc(x)))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlpf(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, block=7, n_embd=16):
        super().__init__()
        self.block_size = block
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(D, n_embd),
                "wpe": nn.Embedding(block, n_embd),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList([Block(n_embd, 2, block) for _ in range(2)]),
                "ln_f": nn.LayerNorm(n_embd),
            }
        )
        self.lm_head = nn.Linear(n_embd, D, bias=False)

    def forward(self, idx, targets=None):
        b, t = idx.size()
        assert t <= self.block_size, f"Cannot forward sequence of length {t}"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device).unsqueeze(0)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, do_sample=False):
        for _ in range(max_new_tokens):
            idx_cond = idx if idx.size(1) <= self.block_size else idx[:, -self.block_size :]
            logits, _ = self(idx_cond)
            probs = F.softmax(logits[:, -1, :], dim=-1)
            if do_sample:
                idx_next = torch.multinomial(probs, num_samples=1)
            else:
                _, idx_next = torch.topk(probs, k=1, dim=-1)
            idx = torch.cat((idx, idx_next), dim=1)
        return idx


class Trainer:
    def __init__(self, model, train_dataset, max_iters):
        self.model, self.train_dataset, self.max_iters = model, train_dataset, max_iters
        self.callbacks = defaultdict(list)
        self.iter_num = 0

    def add_callback(self, onevent, callback):
        self.callbacks[onevent].append(callback)

    def trigger_callbacks(self, onevent):
        for callback in self.callbacks.get(onevent, []):
            callback(self)

    def run(self):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        train_loader = DataLoader(
            self.train_dataset,
            sampler=torch.utils.data.RandomSampler(
                self.train_dataset, replacement=True, num_samples=int(1e10)
            ),
            shuffle=False,
            batch_size=32,
        )
        self.model.train()
        data_iter = iter(train_loader)
        while True:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(train_loader)
                batch = next(data_iter)
            x, y = [t.to("cpu") for t in batch]
            logits, self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.trigger_callbacks("on_batch_end")
            self.iter_num += 1
            if self.iter_num >= self.max_iters:
                break


def batch_end_callback(trainer):
    if trainer.iter_num % 5 == 0:
        print(f"iter {trainer.iter_num}: train loss {trainer.loss.item():.5f}")


torch.manual_seed(3407)
model = GPT()
trainer = Trainer(model, SortDataset("train"), 24)
trainer.add_callback("on_batch_end", batch_end_callback)
trainer.run()
model.eval()
n, results = 4, []
for b, (x, y) in enumerate(DataLoader(SortDataset("test"), batch_size=50, drop_last=False)):
    inp, sol = x[:, :n], y[:, -n:]
    out = model.generate(inp, n, do_sample=b == 1)[:, n:]
    correct = (sol == out).all(1).cpu()
    for i in range(x.size(0)):
        results.append(int(correct[i]))
    if b == 2:
        break
print(f"final score: {sum(results)}/{len(results)} correct")
