"""A model whose stages lie on ranks gives what one device gives, whatever a script does with it."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from parallel.cut_models import MODELS, D, Ranks, compare, train
from ronde.errors import UsageError
from ronde.testing.run_ranks import Rank


class Skips(nn.Module):
    """Code of its own between blocks: a long skip, a table used by its weight, a scalar of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.scale = nn.Embedding(20, 16), nn.Parameter(torch.ones(()))
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.Dropout(0.2)) for _ in range(4)]
        )

    def forward(self, ids: torch.Tensor, weights: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        first = self.embed(ids) + torch.arange(ids.shape[1], dtype=self.embed.weight.dtype)[:, None] / 10
        x, middle = first, first
        for place, block in enumerate(self.blocks):
            x = x + block(x)
            middle = x if place == 1 else middle
        x = torch.cat([x * self.scale, first + middle], -1)[..., :16]
        if weights is not None:
            x = x * weights[..., None]
        return {"logits": F.linear(x, self.embed.weight), "middle": middle, "length": ids.shape[1]}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(20, 8), nn.LSTM(8, 8, 2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


def trained(kind: Callable[[], nn.Module], loss: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> Any:
    torch.manual_seed(1)
    model = kind().to(D)
    draw = torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    average = copy.deepcopy(model)
    told: list[torch.Tensor] = []
    for step in range(5):
        value = loss(model, torch.randint(0, 20, (7, 5), generator=draw))
        if step != 2:  # one window of two backwards
            optimizer.zero_grad()
        value.backward()
        told += [each.grad.norm() for each in model.parameters() if each.grad is not None]
        if step != 1:
            optimizer.step()
        with torch.no_grad():
            for mean, each in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(each, 0.1)
        told += [torch.tensor(value.item()), torch.rand(2)]
    told += [value.clone() for value in average.state_dict().values()]
    model.load_state_dict(average.state_dict())
    model.eval()
    with torch.no_grad():
        told.append(loss(model, torch.randint(0, 20, (7, 5), generator=draw)).clone())
    told += [value.clone() for entry in optimizer.state_dict()["state"].values() for value in entry.values()]
    return [*told, *(value.clone() for value in model.state_dict().values())]


def of_skips(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(0.5, 1.5, ids.numel(), dtype=D).view(ids.shape).requires_grad_()
    out = model(ids, weights)
    assert out["length"] == 5
    loss = F.cross_entropy(out["logits"].flatten(0, 1), ids.flatten()) + 0.1 * out["middle"].pow(2).mean()
    if loss.requires_grad:
        (gradient,) = torch.autograd.grad(loss, weights, retain_graph=True)
        loss = loss + gradient.norm().detach()
    return loss


def of_recurrent(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


@pytest.mark.parametrize(
    "plan", [pytest.param("pipeline=2", marks=pytest.mark.soak), "pipeline=2,micro-batches=3"]
)
def test_code_between_stages_is_carried_out_where_its_values_are(two: Ranks, plan: str):
    compare(two, plan, trained, Skips, of_skips)


def test_a_recurrent_layer_is_a_stage(two: Ranks):
    compare(two, "pipeline=2,micro-batches=2", trained, Recurrent, of_recurrent)


@pytest.mark.parametrize("name", [pytest.param("decoder", marks=pytest.mark.soak), "dropout by hand", "odd"])
def test_a_model_in_stages_trains_as_on_one_device(two: Ranks, name: str):
    compare(two, "pipeline=2,micro-batches=3", train, name)


# torch's attention by itself uses all of its parameters in its own code, so every rank has them.
def test_every_rank_draws_for_dropout_between_stages(two: Ranks):
    """In one micro-batch nobody draws for rows: generators of stages were out of step."""
    compare(two, "pipeline=2", train, "decoder")


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in MODELS if name != "weights of attention"])
@pytest.mark.parametrize(
    "plan",
    [
        "pipeline=4,micro-batches=2",
        "data=2,pipeline=2,micro-batches=2",
        "tensor=2,pipeline=2,micro-batches=2",
    ],
)
def test_a_model_in_stages_trains_as_on_one_device_on_four_ranks(four: Ranks, name: str, plan: str):
    compare(four, plan, train, name)


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["pipeline=4,micro-batches=3", "data=2,pipeline=2", "tensor=2,pipeline=2"])
def test_code_between_stages_on_four_ranks(four: Ranks, plan: str):
    compare(four, plan, trained, Skips, of_skips)


def held_elements(rank: Rank) -> tuple[int, int]:
    """Of parameters, gradients and momentum on this rank, and how many messages it has sent."""
    with rank.session("pipeline=2,micro-batches=4") as session:
        model = nn.Sequential(*(nn.Linear(32, 32), nn.ReLU()) * 1, nn.Linear(32, 32))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 32)).sum().backward()
            optimizer.step()
        blocks = session.state.blocks.blocks
        held = [block.leaf for block in blocks] + [block.leaf.grad for block in blocks]
        held += [entry["momentum_buffer"] for entry in vars(optimizer)["state"].local.values()]
        return sum(each.numel() for each in held if each is not None), len(blocks)


def test_a_rank_keeps_its_stage_only(two: Ranks):
    assert two(held_elements) == [(3 * (32 * 32 + 32), 4)] * 2


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Checkpoints(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def normed() -> None:
    Normed()(torch.randn(6, 4))


def checkpoints() -> None:
    Checkpoints()(torch.randn(6, 4)).sum().backward()


def compiled() -> None:
    torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), backend="eager")(torch.randn(6, 4))


def hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model(torch.randn(6, 4)).sum().backward()
    model[0].weight.register_post_accumulate_grad_hook(lambda tensor: None)


def single() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    torch.autograd.grad(model(torch.randn(6, 4)).sum(), [model[0].weight])


def refusals(rank: Rank) -> list[str]:
    said: list[str] = []
    with rank.session("pipeline=2,micro-batches=2"):
        for case in (normed, checkpoints, compiled, hooks, single):
            try:
                case()
            except UsageError as error:
                said.append(str(error))
    return said


def test_what_cannot_be_kept_is_refused_by_name(two: Ranks):
    for of_norm, of_checkpoint, of_compiled, of_hook, of_single in two(refusals):
        assert of_norm.startswith(
            "pipeline=2 cannot give the single-device answer for Normed, which has batch norm"
        )
        assert of_checkpoint.startswith("the model calls blocks.0 in a checkpoint")
        assert of_compiled.startswith(
            "pipeline=2 does not cut OptimizedModule, which the script has given to"
        )
        assert of_hook.startswith("a hook was registered on the gradient of a parameter of shape [4, 4]")
        assert of_single.startswith("gradients of single parameters were asked for (shape [4, 4])")


def test_messages_between_two_ranks_come_in_the_order_of_sending(two: Ranks):
    assert two(exchanged) == [[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]


def exchanged(rank: Rank) -> list[float]:
    comm, peer = rank.groups["boundary"], 1 - rank.rank
    sent = [comm.send(torch.full((3,), 10.0 * peer + each), peer) for each in range(3)]
    found = [float(comm.receive(torch.empty(3), peer)[0]) for _ in range(3)]
    for each in sent:
        each.wait()
    return found


def of_two_models(collects: bool) -> list[torch.Tensor]:
    """The first model is garbage when the second trains, and `collects` says whether it has gone by then."""
    told: list[torch.Tensor] = []
    gc.collect()
    gc.disable()
    try:
        for unused in (1, 2):
            torch.manual_seed(unused)
            model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)).to(D)
            knot: list[Any] = [model]
            knot.append(knot)
            model[unused].bias.requires_grad_(False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                loss = model(torch.rand(6, 6, dtype=D)).pow(2).sum()
                if collects:
                    gc.collect()
                optimizer.zero_grad()
                loss.backward()
                told += [each.grad.clone() for each in model.parameters() if each.grad is not None]
                optimizer.step()
            told += [value.clone() for value in model.state_dict().values()]
            del model, optimizer, loss, knot
    finally:
        gc.enable()
    return told


def garbage(rank: Rank, plan: str) -> list[torch.Tensor]:
    with rank.session(plan):
        return of_two_models(rank.rank == 1)


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["pipeline=2", "tensor=2"])
def test_ranks_collect_garbage_when_they_like(two: Ranks, plan: str):
    expected = of_two_models(True)
    for found in two(garbage, plan):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def llama() -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "vocab_size": 20}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, pad_token_id=0))


def gpt2() -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 4, "vocab_size": 20, "n_positions": 32}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def bert() -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "vocab_size": 20}
    heads = {"num_attention_heads": 4, "max_position_embeddings": 32, "is_decoder": False}
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **heads))


def of_labels(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    # Not the model's own loss, which is computed in single precision.
    return F.cross_entropy(model(input_ids=ids).logits.flatten(0, 1), ids.flatten())


@pytest.mark.soak
@pytest.mark.parametrize("kind", [llama, gpt2, bert])
@pytest.mark.parametrize("plan", ["pipeline=2,micro-batches=3", "tensor=2"])
def test_hugging_face_models(two: Ranks, plan: str, kind: Callable[[], nn.Module]):
    compare(two, plan, trained, kind, of_labels)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [llama, gpt2, bert])
@pytest.mark.parametrize("plan", ["tensor=2,pipeline=2", "data=2,tensor=2", "data=2,pipeline=2,zero1"])
def test_hugging_face_models_on_four_ranks(four: Ranks, plan: str, kind: Callable[[], nn.Module]):
    compare(four, plan, trained, kind, of_labels)


def trained_with_its_own_loss(steps: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told: list[torch.Tensor] = []
    for _ in range(steps):
        ids = torch.randint(0, 20, (4, 8))
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told.append(loss.detach().clone())
    return told + [value.clone() for value in model.state_dict().values()]


def looks_into_its_cache(rank: Rank, plan: str) -> tuple[list[torch.Tensor], str]:
    with rank.session(plan):
        told, ids = trained_with_its_own_loss(), torch.ones(4, 8, dtype=torch.long)
        with pytest.raises(UsageError) as refused:
            len(llama()(input_ids=ids, labels=ids).past_key_values)
        return told, str(refused.value)


def test_a_model_that_returns_a_cache_is_cut_and_the_cache_refused(two: Ranks):
    expected = trained_with_its_own_loss()
    for told, said in two(looks_into_its_cache, "pipeline=2"):
        torch.testing.assert_close(told, expected, rtol=1e-4, atol=1e-5)  # its loss is in single precision
        assert "keys and values of its own layers" in said
