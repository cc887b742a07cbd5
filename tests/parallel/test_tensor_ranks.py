"""A model whose matrices are cut over ranks gives what one device gives, whatever a script does with it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from parallel.cut_models import MODELS, D, Odd, Ranks, batch, called, compare, train
from ronde.errors import UsageError
from ronde.testing.run_ranks import Rank


@pytest.mark.parametrize("name", MODELS)
def test_a_cut_model_trains_as_on_one_device(two: Ranks, name: str):
    compare(two, "tensor=2", train, name)


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("plan", ["data=2,tensor=2", "tensor=4,tensor-cuts=*.k_proj.*:replicated"])
def test_a_cut_model_trains_as_on_one_device_on_four_ranks(four: Ranks, name: str, plan: str):
    compare(four, plan, train, name)


# Stages, blocks and ZeRO within them; the variants are for soak.
NESTED = [
    "data=2,tensor=2,zero3",
    "data=2,pipeline=2,zero2",
    *(
        pytest.param(plan, marks=pytest.mark.soak)
        for plan in (
            "data=2,tensor=2,zero2",
            "data=2,tensor=2,central",
            "data=2,tensor=2,zero1,offload=optimizer",
            "data=2,tensor=2,zero3,offload=all",
            "data=2,pipeline=2,zero3",
            "data=2,pipeline=2,micro-batches=2,zero3",
            "data=2,pipeline=2,central",
            "tensor=2,pipeline=2,zero3",
        )
    ),
]


@pytest.mark.parametrize("name", [pytest.param("language", marks=pytest.mark.soak), "decoder"])
@pytest.mark.parametrize("plan", NESTED)
def test_blocks_are_cut_once_more_over_their_replicas(four: Ranks, name: str, plan: str):
    compare(four, plan, train, name)


@pytest.mark.soak
@pytest.mark.parametrize("state", ["zero2", "zero3", "central"])
def test_scripts_use_what_is_cut_twice_as_they_like(four: Ranks, state: str):
    compare(four, f"data=2,tensor=2,{state}", uses)


def test_a_model_is_cut_into_stages_and_these_over_tensor_groups(four: Ranks):
    compare(four, "tensor=2,pipeline=2,micro-batches=2", train, "decoder")


def uses() -> list[torch.Tensor]:
    """What scripts do with parameters and gradients, one after the other."""
    torch.manual_seed(1)
    model, draw = Odd().to(D), torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    weight, told = model.fc1.weight, list[torch.Tensor]()
    called("odd", model, batch("odd", draw)).backward()
    told.append(weight.grad.clone())  # read whole, and added to by the next backward
    held = weight.grad
    (called("odd", model, batch("odd", draw)) + weight.pow(2).sum()).backward()  # in the model and beside it
    told += [held.clone(), weight.grad.clone(), model.fc2.weight.grad.norm()]
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    with torch.no_grad():
        model.fc2.weight.mul_(0.5)  # written by hand
        weight[0] = 1.0
    loss = called("odd", model, batch("odd", draw))
    told += torch.autograd.grad(loss, [weight, model.fc2.bias, model.fc2.weight])
    loss = called("odd", model, batch("odd", draw))
    first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    sum(each.pow(2).sum() for each in first).backward()
    told += [value.grad.clone() for value in model.parameters()]
    optimizer.step()
    twin = copy.deepcopy(model)
    told.append(called("odd", twin, batch("odd", draw)).detach())
    model.load_state_dict({name: value * 2 for name, value in twin.state_dict().items()})
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    weight.requires_grad_(False)
    optimizer.zero_grad()
    called("odd", model, batch("odd", draw)).backward()
    told += [value.grad.clone() for value in model.parameters() if value.grad is not None]
    optimizer.step()
    return [*told, *(value.clone() for value in model.state_dict().values())]


def test_scripts_use_parameters_and_gradients_as_they_like(two: Ranks):
    compare(two, "tensor=2", uses)


@pytest.mark.soak
def test_scripts_use_parameters_and_gradients_as_they_like_on_four_ranks(four: Ranks):
    compare(four, "data=2,tensor=2", uses)


def stepped_in_backward() -> list[torch.Tensor]:
    torch.manual_seed(1)
    model, draw = Odd().to(D), torch.Generator().manual_seed(2)
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        called("odd", model, batch("odd", draw)).backward()
    return [value.clone() for value in model.state_dict().values()]


def test_an_optimizer_may_step_in_backward(two: Ranks):
    compare(two, "tensor=2", stepped_in_backward)


def held_bytes(rank: Rank) -> tuple[int, int]:
    """Of parameters, gradients and momentum on this rank, and of the whole ones."""
    with rank.session("tensor=2") as session:
        model = nn.Sequential(*(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) * 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            model(torch.randn(4, 64)).sum().backward()
            optimizer.step()
        blocks = session.state.blocks.blocks
        elements = [block.leaf for block in blocks] + [block.leaf.grad for block in blocks]
        state = vars(optimizer)["state"]
        elements += [entry["momentum_buffer"] for entry in state.local.values()]
        cut = sum(each.nbytes for each in elements if each is not None)
        with torch._C.DisableTorchFunction():  # asked by its function, a parameter would be gathered
            whole = [value.untyped_storage().nbytes() for value in model.parameters()]
        return cut + 2 * 4 * 64, sum(whole)


def test_a_rank_keeps_its_part_only(two: Ranks):
    matrices, biases = 2 * 64 * 256, (256, 64)
    formula = 3 * 4 * ((matrices + biases[0]) // 2 + biases[1])
    for held, whole in two(held_bytes):
        assert held <= 1.1 * formula
        assert whole == 4 * biases[1]  # between uses the others have no elements


def stepped_often(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Two matrices after some steps with momentum."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def elements_of_state(rank: Rank, plan: str) -> int:
    """Of momentum on this rank."""
    with rank.session(plan):
        _, optimizer = stepped_often(2)
        local = vars(optimizer)["state"].local
        return sum(entry["momentum_buffer"].numel() for entry in local.values())


@pytest.mark.parametrize("plan", ["data=2,tensor=2", "data=2,pipeline=2"])
def test_ranks_with_the_same_blocks_share_an_optimizers_state(four: Ranks, plan: str):
    matrices, biases = 2 * 64 * 256, 256 + 64
    without, with_zero1 = (sum(four(elements_of_state, each)) for each in (plan, f"{plan},zero1"))
    # The second bias is whole on every rank of a tensor group.
    again = 64 if "tensor" in plan else 0
    assert without == 2 * (matrices + biases + again)
    assert with_zero1 == matrices + biases + again


def bytes_between_steps(rank: Rank, plan: str) -> int:
    """Of parameters, gradients and momentum on this rank, behind backward."""
    with rank.session(plan) as session:
        model, optimizer = stepped_often(4)
        model(torch.randn(8, 64)).sum().backward()
        held, blocks = list[torch.Tensor](), session.state.blocks
        for parameter in model.parameters():
            block = blocks.block(parameter)
            part = parameter if block is None else block.part
            owns = [each.own(parameter) for each in session.state.parameters]
            held += [next(each for each in (*owns, part) if each is not None)]
            held += [blocks.part(parameter)]
        held += [each["momentum_buffer"] for each in vars(optimizer)["state"].local.values()]
        return sum(each.numel() * each.element_size() for each in held)


def test_a_rank_keeps_its_part_of_its_block_only(four: Ranks):
    parameters = 2 * 64 * 256 + 256 + 64
    for held in four(bytes_between_steps, "data=2,tensor=2,zero3"):
        assert held <= 1.1 * 3 * 4 * parameters / 4


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.fc1.weight.clamp_(-0.1, 0.1)
        return self.fc2(self.fc1(x).relu())


def refusals(rank: Rank) -> list[str]:
    said: list[str] = []
    with rank.session("tensor=2"):
        for case in (writes_in_forward, hooks_late, out_of_range):
            try:
                case()
            except (UsageError, IndexError) as error:
                said.append(str(error))
    return said


def writes_in_forward() -> None:
    Writes()(torch.randn(3, 4))


def hooks_late() -> None:
    model = Odd()
    model(torch.randn(3, 4, 16))
    model.fc1.weight.register_hook(lambda gradient: gradient)


def out_of_range() -> None:
    nn.Sequential(nn.Embedding(8, 4))(torch.tensor([1, 8]))


def test_what_cannot_be_kept_is_refused_by_name(two: Ranks):
    for writes, hooks, outside in two(refusals):
        assert writes.startswith("the forward of Linear writes into its parameter weight, of which tensor=N")
        assert hooks.startswith(
            "a hook was registered on a parameter of shape [24, 16], whose gradient is in blocks"
        )
        assert outside == "index out of range in self"


class Padded(nn.Module):
    """Attention with dropout, in which the first query sees no key."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 4
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).view(*x.shape[:2], 4, 4).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(-1)
        made = nn.functional.scaled_dot_product_attention(q, k, v, seen, dropout_p=0.1)
        return self.o_proj(made.transpose(1, 2).reshape(x.shape))


def of_padded_rows() -> list[torch.Tensor]:
    torch.manual_seed(3)
    model, told = Padded().to(D), list[torch.Tensor]()
    for _ in range(2):
        made = model(torch.randn(2, 5, 16, dtype=D))
        model.zero_grad()
        made.square().sum().backward()
        told += [made.detach().clone(), *(value.grad.clone() for value in model.parameters())]
    return [torch.tensor(each.tolist()) for each in told]


def padded_on_rank(rank: Rank) -> list[torch.Tensor]:
    with rank.session("tensor=2"):
        return of_padded_rows()


def test_a_query_that_sees_no_key_gets_nothing(two: Ranks):
    expected = of_padded_rows()
    for told in two(padded_on_rank):
        torch.testing.assert_close(told, expected, rtol=1e-11, atol=1e-11)


def bytes_of_a_step(rank: Rank) -> int:
    with rank.session("tensor=2") as session:
        model, sent = Padded(), [0]
        for _ in range(4):
            model(torch.ones(4, 6, 16, requires_grad=True)).sum().backward()
            sent.append(sum(group.sent_bytes for group in session.groups.all))
        return sent[-1] - sent[-2]


def test_layers_of_one_input_sum_its_gradient_once(two: Ranks):
    # Of 4 x 6 x 16 numbers: the sum of the output forward, and of the gradient of the input backward.
    assert max(two(bytes_of_a_step)) < 3 * 4 * 6 * 16 * 4
