"""Trains torchtitan's Llama 3 on one device, as its debug model is configured but smaller."""

import torch
from torch import nn
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm, compute_ffn_hidden_dim
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock

torch.manual_seed(0)
dim, heads, vocabulary, length = 32, 4, 64, 16
ones = {"weight": nn.init.ones_}
normal = {"weight": lambda weight: nn.init.trunc_normal_(weight, std=0.02), "bias": nn.init.zeros_}
norm = RMSNorm.Config(normalized_shape=dim, param_init=ones)


def block():
    return Llama3TransformerBlock.Config(
        attention_norm=norm,
        ffn_norm=norm,
        attention=make_gqa_config(
            dim=dim,
            n_heads=heads,
            n_kv_heads=2,
            wqkv_param_init=normal,
            wo_param_init=normal,
            inner_attention=ScaledDotProductAttention.Config(),
            rope=ComplexRoPE.Config(dim=dim // heads, max_seq_len=length, theta=500000, scaling="llama"),
        ),
        feed_forward=make_ffn_config(
            dim=dim,
            hidden_dim=compute_ffn_hidden_dim(dim, multiple_of=16),
            w1_param_init=normal,
            w2w3_param_init=normal,
        ),
    )


config = Llama3Model.Config(
    dim=dim,
    vocab_size=vocabulary,
    tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=dim, param_init=normal),
    norm=norm,
    lm_head=Linear.Config(in_features=dim, out_features=vocabulary, param_init=normal),
    layers=[block(), block()],
)
model = config.build()
model.init_states(buffer_device=torch.device("cpu"))

text = torch.randint(0, vocabulary, (48, length + 1))
loader = torch.utils.data.DataLoader(text, batch_size=8, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 3))
for step, batch in enumerate(loader):
    logits = model(batch[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    total = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.12g} norm {total.item():.12g}")
torch.save(model.state_dict(), "llama.pt")
