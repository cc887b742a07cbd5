"""Calls of mixtures with each rank's own tokens, and experts spread over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ronde.errors import UsageError
from ronde.parallel.expert.token_exchange import Cannot, TokenExchange, announced, linked
from ronde.parallel.expert.token_shares import Among, TokenShares
from ronde.parallel.holding import holding
from ronde.policies.expert_structure import Mixture
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["Outputs", "call_fused", "call_listed", "noting"]

Leaf = Callable[[torch.Tensor], "torch.Tensor | None"]
"""Returns the replacement of a parameter of this rank's experts."""


_Kind = tuple[torch.Size, torch.dtype, torch.device]


class Outputs:
    """Form of the rows that one mixture's experts receive and return.

    All inputs have one shape and dtype, and so have all outputs.

    Attributes:
        called: numbers of the experts that were called.
    """

    def __init__(self) -> None:
        self.called: set[int] = set()
        self._kinds: tuple[_Kind, _Kind] | None = None

    @property
    def are_known(self) -> bool:
        return self._kinds is not None

    def note(self, given: Any, made: Any) -> None:
        """Record the call of an expert, without computing: it may be an observed call."""
        if not isinstance(given, torch.Tensor) or not isinstance(made, torch.Tensor):
            return
        if given.dim() == made.dim() == 1:  # one token
            self._kinds = _kind_of_rows(given, 0), _kind_of_rows(made, 0)
        elif given.dim() > 1 and made.dim() > 1 and len(given) == len(made):
            self._kinds = _kind_of_rows(given), _kind_of_rows(made)

    def of(self, given: torch.Tensor) -> torch.Tensor:
        """Return rows of zeros in the form of the output for the input `given`.

        Sequences may have another length than in the calls before."""
        assert self._kinds is not None
        known, (shape, dtype, device) = self._kinds
        if shape[:-1] == known[0][:-1]:
            shape = given.shape[1:-1] + shape[-1:]
            self._kinds = (given.shape[1:], *known[1:]), (shape, dtype, device)
        return self.made(len(given))

    def given(self, rows: int) -> torch.Tensor:
        """Return `rows` rows of zeros, in the form of the experts' input."""
        assert self._kinds is not None
        return _rows(self._kinds[0], rows)

    def made(self, rows: int) -> torch.Tensor:
        """Return `rows` rows of zeros, in the form of the experts' output."""
        assert self._kinds is not None
        return _rows(self._kinds[1], rows)


def _kind_of_rows(tensor: torch.Tensor, dims: int = 1) -> _Kind:
    return tensor.shape[dims:], tensor.dtype, tensor.device


def _rows(kind: _Kind, rows: int) -> torch.Tensor:
    shape, dtype, device = kind
    return torch.zeros((rows, *shape), dtype=dtype, device=device)


def call_fused(
    mixture: Mixture, among: Among, leaf: Leaf, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call a mixture with all experts' parameters in one module.

    Its forward runs on all ranks' tokens with this rank's experts.

    Args:
        args, kwargs: tokens [T, D], choices [T, K] and weights [T, K] of this rank.

    Returns:
        [T, D]

    Raises:
        Cannot: the arguments have another form.
    """
    values = [*args, *kwargs.values()]
    if len(values) != 3 or not all(isinstance(each, torch.Tensor) for each in values):
        raise Cannot("its arguments are not tokens, choices and weights [R256]")
    tokens, choices, weights = values
    shapes_fit = tokens.dim() == 2 and choices.dim() == 2 and choices.shape == weights.shape
    if not shapes_fit or len(tokens) != len(choices) or choices.is_floating_point():
        raise Cannot("its arguments are not tokens, choices and weights [R256]")
    chosen = choices.reshape(-1)
    order = chosen.argsort(stable=True)
    of_token = order // choices.shape[1]
    counts = chosen.bincount(minlength=mixture.count).tolist()
    comm, share = among.comm, among.shares.of(counts)
    exchange = TokenExchange(comm, share.counts, [count > 0 for count in counts])
    rows = exchange.there(share.own(tokens[of_token]))
    rows = announced(rows, rows, among.passed)
    importance = exchange.there(share.own(weights.reshape(-1)[order]))
    here = mixture.count // comm.world_size
    numbers = torch.tensor([list(range(here))] * comm.world_size, device=rows.device).reshape(-1)
    experts = numbers.repeat_interleave(torch.tensor(exchange.here, device=rows.device).reshape(-1))
    among.gather()
    with holding(mixture.module, leaf), _counting(mixture.module, here):
        if len(rows):
            made = mixture.module.forward(rows, experts[:, None], importance[:, None])
        else:
            made = linked(rows.new_zeros(rows.shape), rows)
        used = list(mixture.module.parameters())
    made = announced(_reaching(made, used), importance, among.gather)
    answered = share.whole(exchange.back(made, importance))
    output = tokens.new_zeros(tokens.shape).index_add(0, of_token, answered.to(tokens.dtype))
    return linked(output, answered)


def call_listed(
    mixture: Mixture,
    among: Among,
    leaf: Leaf,
    outputs: Outputs,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    run: Callable[[nn.Module, torch.Tensor], torch.Tensor] = lambda expert, rows: expert(rows),
) -> Any:
    """Call a mixture with experts as modules of their own.

    The forward of the mixture, which chooses the tokens, runs twice: first experts only record their inputs
    and return zeros; then they return the results of the experts' ranks. So an expert's input may not depend
    on another's output.

    Args:
        run: function that calls an expert of this rank.

    Raises:
        Cannot: an expert's input is not of tokens, or the first run fails. Raised on all ranks.
    """
    rehearsed, problem = _rehearse(mixture, outputs, args, kwargs, among.shares)
    numbers = range(mixture.count)
    by_expert = [[each for number, each in rehearsed if number == expert] for expert in numbers]
    counts = [sum(map(len, each)) for each in by_expert]
    comm, share = among.comm, among.shares.of(counts)
    called = [bool(each) for each in by_expert]
    exchange = TokenExchange(comm, share.counts, called, problem, among.everybody)
    given = [part for each in by_expert for part in each] or [outputs.given(0)]
    rows = exchange.there(share.own(torch.cat(given)))
    rows = announced(rows, rows, among.passed)
    among.gather()
    made = _made_here(mixture, leaf, exchange, rows, outputs.made(0), run)
    made = announced(made, rows, among.gather)
    answered = share.whole(exchange.back(made, rows))
    parts = answered.split([len(part) for each in by_expert for part in each])
    places = sorted(range(len(rehearsed)), key=lambda place: rehearsed[place][0])
    answers = dict(zip(places, parts, strict=True))
    count = iter(range(len(rehearsed)))

    def answer(number: int, given: torch.Tensor) -> torch.Tensor:
        place = next(count, -1)
        if place < 0 or rehearsed[place][0] != number or rehearsed[place][1].shape != given.shape:
            raise UsageError(
                f"{type(mixture.module).__name__} gives experts tokens that depend on other experts' "
                f"outputs, which is not possible under expert={comm.world_size}; take a plan without expert "
                "[R259]"
            )
        return answers[place]

    with _answering(mixture, _by_rows(answer)):
        output = mixture.module.forward(*args, **kwargs)
    first = next((each for each in leaves(output) if isinstance(each, torch.Tensor)), None)
    return map_leaves(lambda each: linked(each, answered) if each is first else each, output)


@contextmanager
def noting(mixture: Mixture, outputs: Outputs) -> Iterator[None]:
    """Record the outputs of experts inside the `with` block."""
    plain = [expert.forward for expert in mixture.experts]

    def answer(number: int, given: Any) -> Any:
        made = plain[number](given)
        outputs.called.add(number)
        outputs.note(given, made)
        return made

    with _answering(mixture, answer):
        yield


def _rehearse(
    mixture: Mixture, outputs: Outputs, args: Sequence[Any], kwargs: Mapping[str, Any], shares: TokenShares
) -> tuple[list[tuple[int, torch.Tensor]], str]:
    """Return each call's expert and tokens, and a problem or ""."""
    rehearsed: list[tuple[int, torch.Tensor]] = []

    def answer(number: int, given: torch.Tensor) -> torch.Tensor:
        rehearsed.append((number, shares.plain(given)))
        return outputs.of(given)

    try:
        with _answering(mixture, _by_rows(answer)):
            mixture.module.forward(*args, **kwargs)
    except Cannot as cannot:
        return [], str(cannot)
    except Exception as error:  # errors on the whole batch are raised there, on all ranks
        return [], f"it failed on the tokens of one rank ({type(error).__name__}: {error})"
    return rehearsed, ""


def _made_here(
    mixture: Mixture,
    leaf: Leaf,
    exchange: TokenExchange,
    rows: torch.Tensor,
    empty: torch.Tensor,
    run: Callable[[nn.Module, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Run this rank's experts on the rows of all ranks, rank 0's first."""
    comm = exchange.comm
    each = mixture.count // comm.world_size
    sizes = [size for row in exchange.here for size in row]
    parts = rows.split(sizes)
    made: list[torch.Tensor] = [empty] * len(parts)
    for place in range(each):
        if not exchange.asked[place]:
            continue
        expert = mixture.experts[comm.rank * each + place]
        mine = parts[place::each]
        with holding(expert, leaf):
            answer = run(expert, torch.cat(mine))
        made[place::each] = answer.split([len(part) for part in mine])
    return torch.cat(made)


def _by_rows(answer: Callable[[int, torch.Tensor], torch.Tensor]) -> Callable[[int, Any], Any]:
    """Wrap `answer` to treat a single token as one row."""

    def answered(number: int, given: torch.Tensor) -> torch.Tensor:
        return answer(number, given) if given.dim() > 1 else answer(number, given[None])[0]

    return answered


@contextmanager
def _answering(mixture: Mixture, answer: Callable[[int, Any], Any]) -> Iterator[None]:
    """Replace the forwards of experts by `answer` inside the `with` block."""

    def caller(number: int) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor) or not args[0].dim():
                raise Cannot("its experts get other arguments than tokens [R256]")
            return answer(number, args[0])

        return forward

    known = [expert.__dict__ for expert in mixture.experts]
    before = [members.get("forward") for members in known]
    for number, members in enumerate(known):
        members["forward"] = caller(number)
    try:
        yield
    finally:
        for members, forward in zip(known, before, strict=True):
            if forward is None:
                del members["forward"]
            else:
                members["forward"] = forward


@contextmanager
def _counting(module: nn.Module, count: int) -> Iterator[None]:
    members: Any = module.__dict__
    before = members["num_experts"]
    members["num_experts"] = count
    try:
        yield
    finally:
        members["num_experts"] = before


def _reaching(made: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Connect parameters of experts without tokens, for gradients of zero.

    One device computes zero gradients for them as well, and not None.
    """
    if len(made) or not torch.is_grad_enabled():
        return made
    trained = [each.flatten()[:1] for each in parameters if each.requires_grad]
    return made + sum(each.sum() for each in trained) * 0 if trained else made
