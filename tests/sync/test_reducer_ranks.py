"""The reducer leaves every gradient as the mean over ranks, however backward is called."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ronde.errors import UsageError
from ronde.tensor.context import Region
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

_D = torch.float64


@contextmanager
def _inside_a_model(rank: Rank, plan: str = "ddp") -> Iterator[Any]:
    """Where modules run on whatever rows this rank has."""
    with rank.session(plan) as session, session.context.enter(Region.SHARDED, 2):
        yield session


def _rows(rank: Rank) -> torch.Tensor:
    """Other numbers on every rank."""
    return torch.arange(8, dtype=_D).view(2, 4) / 7 + rank.rank


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def _mean(rank: Rank, value: torch.Tensor) -> torch.Tensor:
    return rank.groups["boundary"].all_reduce(value.clone()) / rank.world_size


def _check(rank: Rank, expected: list[torch.Tensor | None], parameters: Any) -> list[str]:
    """Compare with gradients that were computed locally and averaged here."""
    problems: list[str] = []
    for place, (local, parameter) in enumerate(zip(expected, parameters, strict=True)):
        if local is None or parameter.grad is None:
            if local is not parameter.grad:
                problems.append(f"gradient {place}: {parameter.grad} instead of {local}")
        elif not torch.allclose(_mean(rank, local.double()), parameter.grad.double(), rtol=1e-12, atol=1e-12):
            problems.append(f"gradient {place} is not the mean")
    return problems


def _locally(backward: Callable[[nn.Module], None], net: nn.Module) -> list[torch.Tensor | None]:
    backward(net)
    return [None if p.grad is None else p.grad.clone() for p in net.parameters()]


def _either(rank: Rank, backward: Callable[[nn.Module], None], bucket_mb: str = "25") -> list[str]:
    """A backward without and with the reducer."""
    expected = _locally(backward, _net())
    with _inside_a_model(rank, f"bucket-mb={bucket_mb}") as session:
        net = _net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        problems: list[str] = []
        for _ in range(3):
            optimizer.zero_grad()
            backward(net)
            problems += _check(rank, expected, net.parameters())
        assert len(session.reducer.adopted) == len(list(net.parameters()))
    return problems


def plain(rank: Rank) -> list[str]:
    return _either(rank, lambda net: net(_rows(rank)).sum().backward())


def many_buckets(rank: Rank) -> list[str]:
    return _either(rank, lambda net: net(_rows(rank)).square().sum().backward(), "0.0001")


def adopted_again(rank: Rank) -> list[str]:
    """A parameter that a strategy has taken and given back, in a bucket that leaves early."""
    expected = _locally(lambda net: net(_rows(rank)).sum().backward(), _net())
    with _inside_a_model(rank, "bucket-mb=0.0001") as session:
        net = _net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for parameter in net.parameters():
            session.reducer.let_go(parameter)
            session.reducer.adopt(parameter, optimizer)
        net(_rows(rank)).sum().backward()
        return _check(rank, expected, net.parameters())


def accumulated(rank: Rank) -> list[str]:
    def backward(net: nn.Module) -> None:
        for part in _rows(rank):
            net(part).square().sum().backward()

    return _either(rank, backward)


def two_forwards_two_backwards(rank: Rank) -> list[str]:
    def backward(net: nn.Module) -> None:
        first, second = (net(part).square().sum() for part in _rows(rank))
        first.backward()
        second.backward()

    return _either(rank, backward)


def one_forward_two_backwards(rank: Rank) -> list[str]:
    def backward(net: nn.Module) -> None:
        out = net(_rows(rank))
        out.sum().backward(retain_graph=True)
        out.square().sum().backward()

    return _either(rank, backward)


def chosen_inputs(rank: Rank) -> list[str]:
    def backward(net: Any) -> None:
        net(_rows(rank)).square().sum().backward(inputs=[net[0].weight, net[2].bias])

    return _either(rank, backward)


def not_contiguous(rank: Rank) -> list[str]:
    def backward(net: Any) -> None:
        net[0].weight.grad = torch.zeros(4, 5, dtype=_D).t()
        net(_rows(rank)).square().sum().backward()

    return _either(rank, backward)


def checkpointed(rank: Rank) -> list[str]:
    def backward(net: Any) -> None:
        checkpoint(net, _rows(rank).requires_grad_(), use_reentrant=False).square().sum().backward()

    def reentrant(net: Any) -> None:
        checkpoint(net[2], net[1](net[0](_rows(rank))), use_reentrant=True).square().sum().backward()

    def twice(net: Any) -> None:
        """A parameter that is used by two segments is ready twice."""
        shared = checkpoint(net[0], _rows(rank).requires_grad_(), use_reentrant=True)
        again = checkpoint(net[0], shared[:, :4], use_reentrant=True)
        net[2](again).square().sum().backward()

    return (
        _either(rank, backward)
        + _either(rank, reentrant)
        + _either(rank, twice)
        + _either(rank, twice, "0.0001")
    )


def used_on_one_rank_only(rank: Rank) -> list[str]:
    """As when ranks' rows take different branches inside a model."""

    def backward(net: Any) -> None:
        (
            net[0](_rows(rank)).sum()
            if rank.rank == 0
            else net[0](_rows(rank)).detach().sum() + net[2].bias.sum()
        ).backward()

    net = _net()
    backward(net)
    mine = {name: p.grad for name, p in net.named_parameters()}
    zeros = [torch.zeros_like(p) if mine[name] is None else mine[name] for name, p in net.named_parameters()]
    expected: list[Any] = [None if name == "2.weight" else zeros[place] for place, name in enumerate(mine)]
    with _inside_a_model(rank):
        net = _net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        problems: list[str] = []
        for _ in range(3):
            optimizer.zero_grad()
            backward(net)
            problems += _check(rank, expected, net.parameters())
    return problems


def two_optimizers(rank: Rank) -> list[str]:
    """As in a GAN: each backward reaches one network, or both."""

    def run(generator: Any, critic: Any) -> list[torch.Tensor | None]:
        fake = generator(_rows(rank))
        critic(fake.detach().repeat(1, 2)).mean().backward()
        first = [p.grad for p in generator.parameters()]
        kept = [p.grad.clone() for p in critic.parameters()]
        critic.zero_grad()
        critic(fake.repeat(1, 2)).square().mean().backward()
        return [*first, *kept, *(p.grad.clone() for p in (*generator.parameters(), *critic.parameters()))]

    expected = run(_net(), _net())
    with _inside_a_model(rank):
        generator, critic = _net(), _net()
        optimizers = [torch.optim.Adam(net.parameters()) for net in (generator, critic)]
        problems: list[str] = []
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            found = run(generator, critic)
            for place, (a, b) in enumerate(zip(expected, found, strict=True)):
                if (a is None) != (b is None) or (
                    a is not None and b is not None and not torch.allclose(_mean(rank, a), b)
                ):
                    problems.append(f"gradient {place}")
    return problems


def unfrozen_late(rank: Rank) -> list[str]:
    backward: Callable[[Any], None] = lambda net: net(_rows(rank)).square().sum().backward()  # noqa: E731
    expected = _locally(backward, _net())
    with _inside_a_model(rank):
        net = _net()
        net[0].requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), 0.0)
        backward(net)
        optimizer.step()
        net[0].requires_grad_(True)
        optimizer.zero_grad()
        optimizer.step()  # adopts what has come
        backward(net)
        return _check(rank, expected, net.parameters())


def group_added(rank: Rank) -> list[str]:
    backward: Callable[[Any], None] = lambda net: net(_rows(rank)).square().sum().backward()  # noqa: E731
    expected = _locally(backward, _net())
    with _inside_a_model(rank):
        net = _net()
        optimizer = torch.optim.SGD(net[2].parameters(), 0.0)
        backward(net)
        optimizer.add_param_group({"params": net[0].parameters()})
        optimizer.zero_grad()
        backward(net)
        return _check(rank, expected, net.parameters())


def mixed_types(rank: Rank) -> list[str]:
    def make() -> list[nn.Parameter]:
        types = (torch.float64, torch.float32, torch.float64, torch.bfloat16)
        return [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in types]

    def backward(parameters: list[nn.Parameter]) -> None:
        sum((p.double() * (rank.rank + place)).sum() for place, p in enumerate(parameters)).backward()  # pyright: ignore[reportOptionalSubscript, reportOptionalMemberAccess, reportAttributeAccessIssue]

    plainly = make()
    backward(plainly)
    with _inside_a_model(rank):
        parameters = make()
        torch.optim.SGD(parameters, 0.1)
        backward(parameters)
        narrow = max(
            abs(float(p.grad[0]) - place - (rank.world_size - 1) / 2) for place, p in enumerate(parameters)
        )  # pyright: ignore[reportOptionalSubscript, reportOptionalMemberAccess, reportAttributeAccessIssue]
        types = [p.grad.dtype for p in parameters] == [p.dtype for p in parameters]  # pyright: ignore[reportOptionalSubscript, reportOptionalMemberAccess, reportAttributeAccessIssue]
    return [] if narrow < 0.02 and types else [f"off by {narrow}"]


def after_an_exception(rank: Rank) -> list[str]:
    """A backward that raised on all ranks leaves nothing behind."""

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise ArithmeticError("in backward")

    backward: Callable[[Any], None] = lambda net: net(_rows(rank)).square().sum().backward()  # noqa: E731
    expected = _locally(backward, _net())
    with _inside_a_model(rank, "bucket-mb=0.0001"):
        net = _net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        backward(net)
        problems: list[str] = []
        try:
            net[2](net[1](Failing.apply(net[0](_rows(rank))))).sum().backward()
            problems.append("did not raise")
        except ArithmeticError:
            optimizer.zero_grad()
        backward(net)
        return problems + _check(rank, expected, net.parameters())


def nested(rank: Rank) -> list[str]:
    """A backward inside of a backward."""

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, net: Any) -> torch.Tensor:
            ctx.net = net
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            with torch.enable_grad():
                ctx.net(_rows(rank)).sum().backward()
            return grads[0], None

    def backward(net: Any) -> None:
        net[2](Inner.apply(net[1](net[0](_rows(rank))), net)).square().sum().backward()

    return _either(rank, backward)


def one_leaf_without_a_gradient(rank: Rank) -> list[str]:
    """A function's backward gives None for a leaf."""

    class Frozen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return weight.sum() + bias.sum()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0].expand(5, 4), None

    return _either(rank, lambda net: Frozen.apply(net[0].weight, net[0].bias).backward())


def twice_on_one_rank_only(rank: Rank) -> list[str]:
    """A parameter is ready twice here, and once there: all have to send it again."""

    def backward(net: Any) -> None:
        first = net[0](_rows(rank).requires_grad_())
        if rank.rank == 0:
            first = checkpoint(net[0], _rows(rank).requires_grad_(), use_reentrant=True)
            again = checkpoint(net[0], first[:, :4], use_reentrant=True)
            net[2](again).square().sum().backward()
        else:
            checkpoint(net[2], net[0](first[:, :4]), use_reentrant=True).square().sum().backward()

    return _either(rank, backward) + _either(rank, backward, "0.0001")


def forgotten(rank: Rank) -> list[str]:
    """A model and an optimizer for each fold are let go of, also when a rank collects its garbage late."""
    backward: Callable[[Any], None] = lambda net: net(_rows(rank)).square().sum().backward()  # noqa: E731
    expected = _locally(backward, _net())
    problems: list[str] = []
    with _inside_a_model(rank) as session:
        late: list[Any] = []
        sizes: list[int] = []
        for fold in range(5):
            net = _net()
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            backward(net)
            problems += _check(rank, expected, net.parameters())
            sizes.append(len(session.reducer.adopted))
            optimizer.step()
            if rank.rank == 1 and fold == 1:
                late = [net]
            del net, optimizer
            if fold == 3:
                late.clear()
        # Parameters of the fold under way, and of the one that is held.
        held = 4 if rank.rank == 1 else 0
        if sizes != [4, 4, 4 + held, 4 + held, 4]:
            problems.append(f"holds {sizes} leaves")
    return problems


def converted(rank: Rank) -> list[str]:
    """A model that changes its dtype after the first backward is averaged in the new one."""

    def backward(net: Any) -> None:
        (net(_rows(rank).to(net[0].weight.dtype)) / 3).square().sum().backward()

    expected = _locally(backward, _net().float().double())
    with _inside_a_model(rank):
        net = _net().float()
        optimizer = torch.optim.SGD(net.parameters(), 0.0)
        backward(net)
        net.double()
        optimizer.zero_grad()
        optimizer.step()  # adopts what has changed
        backward(net)
        return _check(rank, expected, net.parameters())


def hooks_see_the_mean(rank: Rank) -> list[str]:
    """The user's post-accumulate hooks: after the reduction, once, in the order of backward."""
    backward: Callable[[Any], None] = lambda net: net(_rows(rank)).square().sum().backward()  # noqa: E731
    expected = _locally(backward, _net())
    with _inside_a_model(rank):
        net = _net()
        names = {id(p): name for name, p in net.named_parameters()}
        optimizers = {id(p): torch.optim.SGD([p], 0.0) for p in net.parameters()}
        found: dict[str, Any] = {}

        def hook(parameter: Any) -> None:
            found[names[id(parameter)]] = parameter.grad.clone()
            optimizers[id(parameter)].step()
            optimizers[id(parameter)].zero_grad()

        handles = [p.register_post_accumulate_grad_hook(hook) for p in net.parameters()]
        problems: list[str] = []
        for _ in range(2):
            found.clear()
            backward(net)
            problems += [f"{name} is left" for name, p in net.named_parameters() if p.grad is not None]
            if sorted(list(found)[:2]) != ["2.bias", "2.weight"] or len(found) != 4:
                problems.append(f"called for {list(found)}")
            for (name, _), local in zip(net.named_parameters(), expected, strict=True):
                if local is None or not torch.allclose(_mean(rank, local), found[name], rtol=1e-12):
                    problems.append(f"{name} was not the mean")
        for handle in handles:
            handle.remove()
        found.clear()
        backward(net)
        problems += [f"called for {name} after its removal" for name in found]
        return problems + _check(rank, expected, net.parameters())


def hooks_where_one_rank_went(rank: Rank) -> list[str]:
    """A leaf that only the last rank's rows reach has its hook run on all, others have not."""
    last = rank.world_size - 1
    with _inside_a_model(rank):
        net: Any = _net()
        called: list[Any] = []
        for part in (net[0], net[2]):
            part.weight.register_post_accumulate_grad_hook(lambda p: called.append(p.grad.clone()))
        branch = net[0].weight if rank.rank == last else net[2].bias
        (branch.sum() + net[0].bias.sum()).backward()
        share = torch.full((5, 4), 1 / rank.world_size, dtype=_D)
        return [] if len(called) == 1 and torch.equal(called[0], share) else [f"{called}"]


def hooks_of_what_is_gone(rank: Rank) -> list[str]:
    with _inside_a_model(rank) as session:
        for _ in range(3):
            net = _net()
            net[0].weight.register_post_accumulate_grad_hook(lambda p: None)
            net(_rows(rank)).sum().backward()
        del net
        gc.collect()
        _net()(_rows(rank)).sum().backward()
        return [str(kept) for kept in session.reducer.hooks._registered]


def hooks_after_an_exception(rank: Rank) -> list[str]:
    """Not called for a backward that failed; a second accumulation in one backward is refused."""
    with _inside_a_model(rank):
        net: Any = _net()
        called: list[Any] = []
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(called.append)
        shared = checkpoint(net[0], _rows(rank).requires_grad_(), use_reentrant=True)
        again = checkpoint(net[0], shared[:, :4], use_reentrant=True)
        try:
            net[2](again).square().sum().backward()
            return ["did not raise"]
        except UsageError as error:
            problems = [] if "use_reentrant=False" in str(error) else [str(error)]
        problems += [f"called {len(called)} times"] if called else []
        net.zero_grad()
        net(_rows(rank)).sum().backward()
        return problems + ([] if len(called) == 4 else [f"then called {len(called)} times"])


def sparse_gradients(rank: Rank) -> list[str]:
    """Rows of all ranks, once and again; a rank without any; dense where the weight is used so, too."""
    problems: list[str] = []
    looked_up: list[list[list[int]]] = [[[1, 3], [1, 3], [1, 3]], [[0], [1], [2]], [[2, 2], [], []]]
    with _inside_a_model(rank) as session:
        table = nn.Embedding(5, 2, sparse=True)
        session.reducer.adopt_all(torch.optim.SparseAdam(list(table.parameters())))
        for of_ranks in looked_up:
            expected = torch.zeros(5, 2)
            for other, ids in enumerate(of_ranks[: rank.world_size]):
                expected.index_add_(
                    0, torch.tensor(ids, dtype=torch.int64), torch.ones(len(ids), 2) * (other + 1)
                )
            for times in (1, 2):
                ids = torch.tensor(of_ranks[rank.rank], dtype=torch.int64)
                (table(ids).sum() * (rank.rank + 1)).backward()
                found: Any = table.weight.grad
                same = found.is_sparse and torch.allclose(
                    found.to_dense(), times * expected / rank.world_size
                )
                problems += [] if same else [f"{of_ranks}, {times} times: {found}"]
            table.zero_grad()
        (table(torch.tensor([1])).sum() + table.weight.sum()).backward()
        dense = torch.ones(5, 2)
        dense[1] += 1
        problems += [] if torch.equal(table.weight.grad, dense) else [f"dense: {table.weight.grad}"]
    return problems


SITUATIONS = {
    function.__name__: function
    for function in (
        plain,
        many_buckets,
        adopted_again,
        accumulated,
        two_forwards_two_backwards,
        one_forward_two_backwards,
        chosen_inputs,
        not_contiguous,
        checkpointed,
        used_on_one_rank_only,
        two_optimizers,
        unfrozen_late,
        group_added,
        mixed_types,
        after_an_exception,
        nested,
        one_leaf_without_a_gradient,
        twice_on_one_rank_only,
        forgotten,
        converted,
        hooks_see_the_mean,
        hooks_where_one_rank_went,
        hooks_of_what_is_gone,
        hooks_after_an_exception,
        sparse_gradients,
    )
}


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", list(SITUATIONS))
def test_gradients_are_the_mean_over_ranks(ranks: Any, name: str, world_size: int) -> None:
    assert ranks(world_size, SITUATIONS[name]) == [[]] * world_size


def leaves_of_fewer(rank: Rank, early: bool) -> list[list[float] | None]:
    """Each rank uses one of three leaves; a node that both have says that backward has been past them.

    Args:
        early: it says so before, and has to be corrected when backward ends.
    """
    with _inside_a_model(rank) as session:
        inner = session.reducer.of_fewer(session.groups.meet("others", range(rank.world_size)))
        leaves = [torch.ones(2, dtype=_D, requires_grad=True) for _ in range(3)]
        for leaf in leaves:
            inner.adopt(leaf)
        for _ in range(2):
            for leaf in leaves:
                leaf.grad = None
            node = torch.zeros((), dtype=_D, requires_grad=True) * 1
            used = (leaves[rank.rank] * (rank.rank + 1)).sum()
            node = node * 1 if early else node
            node.register_hook(lambda _: inner.passed(leaves))
            (used + node).backward()
        return [None if leaf.grad is None else leaf.grad.tolist() for leaf in leaves]


@pytest.mark.parametrize("early", [False, True])
def test_leaves_that_some_ranks_use_are_averaged_when_all_have_passed_them(ranks: Any, early: bool) -> None:
    assert ranks(2, leaves_of_fewer, early) == [[[0.5, 0.5], [1.0, 1.0], None]] * 2
