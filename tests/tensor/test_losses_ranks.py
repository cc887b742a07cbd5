"""torch's losses of a sharded batch: values and gradients of one device, and the logits are not gathered."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from both_ways import ROWS, Inputs, compare_all
from ronde.tensor.edges import Gather
from ronde.tensor.rules import losses
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

Case = Callable[[Inputs], Any]
_REDUCTIONS = ("none", "sum", "mean")


def _classes(m: Inputs, *shape: int, whole: bool = False) -> torch.Tensor:
    target = m.values(*shape, low=0, high=4, integer=True)
    return target if whole else m.shard(target)


def _class_cases() -> Iterator[tuple[str, Case]]:
    for reduction in _REDUCTIONS:
        for name, options in {
            "plain": {},
            "ignore": {"ignore_index": 1},
            "smooth": {"label_smoothing": 0.2},
            "smooth ignore": {"label_smoothing": 0.2, "ignore_index": 2},
        }.items():
            for weighted in (False, True):
                for whole in (False, True):

                    def case(
                        m: Inputs,
                        options: Any = options,
                        weighted: Any = weighted,
                        whole: Any = whole,
                        reduction: str = reduction,
                    ) -> Any:
                        weight = m.values(4) if weighted else None
                        logits, target = m.batch(ROWS, 4), _classes(m, ROWS, whole=whole)
                        return F.cross_entropy(logits, target, weight, reduction=reduction, **options)

                    yield f"cross_entropy {name} weighted={weighted} whole={whole} {reduction}", case

        def pixels(m: Inputs, reduction: str = reduction) -> Any:
            return F.cross_entropy(
                m.batch(ROWS, 4, 2, 3), _classes(m, ROWS, 2, 3), m.values(4), reduction=reduction
            )

        def tokens(m: Inputs, reduction: str = reduction) -> Any:
            logits, target = m.batch(ROWS, 5, 4), _classes(m, ROWS, 5)
            return F.cross_entropy(logits.view(-1, 4), target.view(-1), reduction=reduction, ignore_index=0)

        def tokens_second(m: Inputs, reduction: str = reduction) -> Any:
            logits, target = m.batch(5, ROWS, 4, dim=1), m.values(5, ROWS, low=0, high=4, integer=True)
            return F.cross_entropy(logits.view(-1, 4), m.shard(target, 1).reshape(-1), reduction=reduction)

        def shifted(m: Inputs, reduction: str = reduction) -> Any:
            logits, target = m.batch(ROWS, 5, 4), _classes(m, ROWS, 5)
            kept, following = logits[:, :-1].contiguous(), target[..., 1:].contiguous()
            return F.cross_entropy(kept.view(-1, 4), following.view(-1), reduction=reduction)

        def transposed(m: Inputs, reduction: str = reduction) -> Any:
            return F.cross_entropy(
                m.batch(ROWS, 5, 4).transpose(1, 2), _classes(m, ROWS, 5), reduction=reduction
            )

        def probabilities(m: Inputs, reduction: str = reduction) -> Any:
            target = m.batch(ROWS, 4).softmax(1)
            return F.cross_entropy(
                m.batch(ROWS, 4), target, m.values(4), reduction=reduction, label_smoothing=0.1
            )

        def likelihood(m: Inputs, reduction: str = reduction) -> Any:
            return F.nll_loss(
                m.batch(ROWS, 4).log_softmax(-1), _classes(m, ROWS), m.values(4), reduction=reduction
            )

        def all_ignored(m: Inputs, reduction: str = reduction) -> Any:
            return F.cross_entropy(m.batch(ROWS, 4), _classes(m, ROWS) * 0 - 100, reduction=reduction)

        def ignored_on_one_rank(m: Inputs, reduction: str = reduction) -> Any:
            target = m.values(ROWS, low=0, high=4, integer=True)
            target[:4] = -100
            return F.cross_entropy(m.batch(ROWS, 4), m.shard(target), reduction=reduction)

        def own_target(m: Inputs, reduction: str = reduction) -> Any:
            logits = m.batch(ROWS, 4)
            return F.cross_entropy(logits, logits.argmax(1), reduction=reduction)

        def narrow(m: Inputs, reduction: str = reduction) -> Any:
            return F.cross_entropy(
                m.batch(ROWS, 4).detach().bfloat16() * 0, _classes(m, ROWS), reduction=reduction
            )

        def module(m: Inputs, reduction: str = reduction) -> Any:
            return nn.CrossEntropyLoss(reduction=reduction)(m.batch(ROWS, 4), _classes(m, ROWS))

        for case in (
            pixels,
            tokens,
            tokens_second,
            shifted,
            transposed,
            probabilities,
            likelihood,
            all_ignored,
            ignored_on_one_rank,
            own_target,
            narrow,
            module,
        ):
            yield f"{case.__name__} {reduction}", case


def _pointwise_cases() -> Iterator[tuple[str, Case]]:
    losses: dict[str, Callable[..., Any]] = {
        "mse": F.mse_loss,
        "l1": F.l1_loss,
        "smooth_l1": functools.partial(F.smooth_l1_loss, beta=0.1),
        "huber": functools.partial(F.huber_loss, delta=0.1),
        "bce": F.binary_cross_entropy,
        "bce_with_logits": F.binary_cross_entropy_with_logits,
        "kl": functools.partial(F.kl_div, log_target=False),
        "kl_log": functools.partial(F.kl_div, log_target=True),
        "soft_margin": F.soft_margin_loss,
        "poisson": functools.partial(F.poisson_nll_loss, full=True),
    }
    for name, loss in losses.items():
        for reduction in _REDUCTIONS:
            yield (
                f"{name} {reduction}",
                lambda m, loss=loss, reduction=reduction: [
                    loss(m.batch(ROWS, 3), m.batch(ROWS, 3).detach(), reduction=reduction),
                    loss(m.batch(ROWS, 3), m.leaf(ROWS, 3, grad=False), reduction=reduction),
                    loss(m.inner(ROWS, 3), m.batch(ROWS, 3).detach(), reduction=reduction),
                    loss(m.batch(3, ROWS, dim=1), m.batch(3, ROWS, dim=1).detach(), reduction=reduction),
                    loss(m.batch(ROWS), m.batch(ROWS).detach(), reduction=reduction),
                ],
            )
    yield "both with gradients", lambda m: F.mse_loss(m.batch(ROWS, 3), m.batch(ROWS, 3))
    yield "broadcast", lambda m: F.mse_loss(m.batch(ROWS, 3), m.leaf(3, grad=False))
    yield "column", lambda m: F.l1_loss(m.batch(ROWS, 1), m.batch(ROWS))
    yield (
        "batchmean",
        lambda m: [
            F.kl_div(m.batch(ROWS, 3).log(), m.batch(ROWS, 3), reduction="batchmean"),
            F.kl_div(m.batch(3, ROWS, dim=1).log(), m.batch(3, ROWS, dim=1), reduction="batchmean"),
        ],
    )
    for reduction in _REDUCTIONS:
        yield (
            f"weighted {reduction}",
            lambda m, reduction=reduction: [
                F.binary_cross_entropy(
                    m.batch(ROWS, 3),
                    m.batch(ROWS, 3).detach(),
                    m.batch(ROWS, 3).detach(),
                    reduction=reduction,
                ),
                F.binary_cross_entropy(
                    m.batch(ROWS, 3), m.batch(ROWS, 3).detach(), m.values(3), reduction=reduction
                ),
                F.binary_cross_entropy_with_logits(
                    m.batch(ROWS, 3),
                    m.batch(ROWS, 3).detach(),
                    m.batch(ROWS, 1).detach(),
                    pos_weight=m.values(3),
                    reduction=reduction,
                ),
                F.mse_loss(
                    m.batch(ROWS, 3), m.batch(ROWS, 3), weight=m.batch(ROWS, 3).detach(), reduction=reduction
                ),
                F.huber_loss(
                    m.batch(ROWS, 3), m.batch(ROWS, 3), weight=m.values(ROWS, 3), reduction=reduction
                ),
            ],
        )
        yield (
            f"gaussian {reduction}",
            lambda m, reduction=reduction: [
                F.gaussian_nll_loss(
                    m.batch(ROWS, 3), m.batch(ROWS, 3), m.batch(ROWS, 3), full=True, reduction=reduction
                ),
                F.gaussian_nll_loss(
                    m.batch(ROWS, 3), m.batch(ROWS, 3), m.batch(ROWS, 1), reduction=reduction
                ),
                F.gaussian_nll_loss(m.batch(ROWS, 3), m.batch(ROWS, 3), m.batch(ROWS), reduction=reduction),
                F.gaussian_nll_loss(m.batch(ROWS, 3), m.batch(ROWS, 3), m.leaf(ROWS), reduction=reduction),
                F.gaussian_nll_loss(m.batch(ROWS, 3), m.batch(ROWS, 3), m.leaf(ROWS, 1), reduction=reduction),
                F.gaussian_nll_loss(m.batch(ROWS, 3), m.batch(ROWS, 3), 0.5, reduction=reduction),
            ],
        )


def _gathering_cases() -> Iterator[tuple[str, Case]]:
    yield (
        "legacy arguments",
        lambda m: [
            F.mse_loss(m.batch(ROWS, 3), m.batch(ROWS, 3), size_average=False),
            F.cross_entropy(
                m.batch(ROWS, 3), m.shard(m.values(ROWS, low=0, high=3, integer=True)), reduce=False
            ),
        ],
    )
    yield "unbatched", lambda m: F.cross_entropy(m.batch(ROWS), torch.tensor(2))
    yield (
        "triplets",
        lambda m: [
            F.triplet_margin_loss(m.batch(ROWS, 3), m.batch(ROWS, 3), m.batch(ROWS, 3)),
            F.cosine_embedding_loss(m.batch(ROWS, 3), m.batch(ROWS, 3), torch.ones(ROWS)),
            F.margin_ranking_loss(m.batch(ROWS), m.batch(ROWS), torch.ones(ROWS)),
            F.multi_margin_loss(m.batch(ROWS, 3), m.shard(m.values(ROWS, low=0, high=3, integer=True))),
            F.multilabel_soft_margin_loss(m.batch(ROWS, 3), m.batch(ROWS, 3).round().detach()),
            F.hinge_embedding_loss(m.batch(ROWS, 3), torch.ones(ROWS, 3)),
        ],
    )
    yield (
        "ctc",
        lambda m: F.ctc_loss(
            m.batch(6, ROWS, 4, dim=1).log_softmax(-1),
            m.values(ROWS, 2, low=1, high=4, integer=True),
            torch.full((ROWS,), 6),
            torch.full((ROWS,), 2),
        ),
    )
    yield "contrastive", lambda m: _contrastive(m.batch(ROWS, 3), m.batch(ROWS, 3))
    yield (
        "target of another cut",
        lambda m: F.cross_entropy(
            m.batch(ROWS, 4, 3), m.shard(m.values(3, ROWS, low=0, high=4, integer=True), 1).t()
        ),
    )


def _contrastive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    logits = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t() * 5
    return F.cross_entropy(logits, torch.arange(len(a))) + F.cross_entropy(logits.t(), torch.arange(len(a)))


_CASES: dict[str, dict[str, Case]] = {
    "classes": dict(_class_cases()),
    "pointwise": dict(_pointwise_cases()),
    "gathering": dict(_gathering_cases()),
}


def _losses(rank: Rank, group: str, pattern: str) -> list[str]:
    cases = {name: case for name, case in _CASES[group].items() if pattern in name}
    return compare_all(rank, cases)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("group", list(_CASES))
def test_a_loss_is_that_of_the_whole_batch(ranks: Any, group: str, world_size: int) -> None:
    assert ranks(world_size, _losses, group, "") == [[]] * world_size


def _unread(rank: Rank) -> list[str]:
    """As on a device, where the host does not read how many targets count."""
    with mock.patch.object(losses, "is_on_accelerator", return_value=True):
        return _losses(rank, "classes", "")


def test_a_mean_over_targets_that_the_host_does_not_read(ranks: Any) -> None:
    assert ranks(3, _unread) == [[]] * 3


def _count_gathers(rank: Rank) -> int:
    """How often a whole value is made while losses of a language model are computed and differentiated."""
    counted: list[int] = []
    with rank.session() as session:
        plain = Gather.forward
        session.patches.set(
            Gather, "forward", staticmethod(lambda *args: (counted.append(1), plain(*args))[1])
        )
        m = Inputs(session)
        logits, target = m.batch(ROWS, 5, 4), m.shard(m.values(ROWS, 5, low=0, high=4, integer=True))
        loss = F.cross_entropy(logits.view(-1, 4), target.view(-1), ignore_index=0)
        loss = loss + F.mse_loss(m.batch(ROWS, 3), m.batch(ROWS, 3).detach())
        loss.backward()
        assert (logits.argmax(-1) == target).sum().item() >= 0
    return len(counted)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_logits_are_not_gathered(ranks: Any, world_size: int) -> None:
    assert ranks(world_size, _count_gathers) == [0] * world_size
