"""Under zero1 an optimizer gives, to the bit, the parameters and the state that it gives on one device."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from codes import without_codes
from ronde.errors import UsageError
from ronde.shards.cut_state import CutState
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

Ranks = Callable[..., list[Any]]
_O = torch.optim

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (_O.SGD, {"lr": 0.1}),
    "sgd momentum": (_O.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "sgd foreach": (_O.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True, "maximize": True}),
    "sgd fused": (_O.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "adam": (_O.Adam, {"weight_decay": 0.1}),
    "adam amsgrad": (_O.Adam, {"amsgrad": True, "foreach": True, "maximize": True}),
    "adam fused": (_O.Adam, {"fused": True}),
    "adam tensor lr": (_O.Adam, {"lr": torch.tensor(0.01), "foreach": False}),
    "adamw": (_O.AdamW, {}),
    "nadam": (_O.NAdam, {}),
    "radam": (_O.RAdam, {}),
    "adamax": (_O.Adamax, {}),
    "adagrad": (_O.Adagrad, {}),
    "rmsprop": (_O.RMSprop, {"momentum": 0.5, "centered": True}),
    "adadelta": (_O.Adadelta, {}),
    "asgd": (_O.ASGD, {}),
    "rprop": (_O.Rprop, {}),
}


def _parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Of all sorts: larger than one part, small, without dimensions, empty, in other orders of axes."""
    draw = torch.Generator().manual_seed(3)

    def parameter(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).to(dtype)

    return [
        nn.Parameter(value)
        for value in (
            parameter(33, 41),
            parameter(7),
            parameter(),
            parameter(0, 4),
            parameter(6, 5, 9, 9).to(memory_format=torch.channels_last),
            parameter(19, 23).t(),
            parameter(40, 40)[:, ::2],
            parameter(700),
        )
    ]


@torch.no_grad()
def _gradients(parameters: list[nn.Parameter], step: int, absent: tuple[int, ...] = ()) -> None:
    draw = torch.Generator().manual_seed(step)
    for place, parameter in enumerate(parameters):
        # In the parameter's layout, as autograd makes it.
        gradient = torch.empty_like(parameter).copy_(torch.randn(parameter.shape, generator=draw))
        parameter.grad = None if place in absent else gradient


def _train(name: str, dtype: torch.dtype = torch.float32, steps: int = 4) -> dict[str, Any]:
    """Some steps in which parameters come, go, and change; the parameters and state at the end."""
    parameters = _parameters(dtype)
    kind, options = OPTIMIZERS[name]
    first, second = parameters[:5], parameters[5:]
    optimizer = kind([{"params": first}, {"params": second, "lr": 0.03}], **options)
    schedule = _O.lr_scheduler.ExponentialLR(optimizer, 0.5) if "tensor" not in name else None
    for step in range(steps):
        _gradients(parameters, step, absent=((), (0,), (1, 5, 7), ())[step % 4])
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return {
        "parameters": [parameter.detach().clone() for parameter in parameters],
        "state": copy.deepcopy(optimizer.state_dict()),
        "keys": [id(key) in {id(parameter) for parameter in parameters} for key in optimizer.state],
    }


def _differences(plain: Any, found: Any, path: str = "") -> Iterator[str]:
    if isinstance(plain, torch.Tensor):
        same = isinstance(found, torch.Tensor) and (plain.dtype, plain.shape, plain.stride()) == (
            found.dtype,
            found.shape,
            found.stride(),
        )
        if not same or not torch.equal(plain, found):
            yield f"{path}: {found} instead of {plain}"
    elif isinstance(plain, dict):
        if list(plain) != list(found):
            yield f"{path}: keys {list(found)} instead of {list(plain)}"
        for key in plain.keys() & found.keys():
            yield from _differences(plain[key], found[key], f"{path}.{key}")
    elif isinstance(plain, (list, tuple)):
        if len(plain) != len(found):
            yield f"{path}: {len(found)} instead of {len(plain)}"
        for place, (one, other) in enumerate(zip(plain, found)):
            yield from _differences(one, other, f"{path}[{place}]")
    elif plain != found:
        yield f"{path}: {found!r} instead of {plain!r}"


def every_optimizer(rank: Rank, dtype: torch.dtype) -> list[str]:
    problems: list[str] = []
    for name in OPTIMIZERS:
        if name == "sgd fused" and dtype is torch.bfloat16:
            continue  # torch's own kernel mixes elements up (pytorch#191763)
        with rank.session():  # every rank updates everything, by the same kernels
            plain = _train(name, dtype)
        with rank.session("zero1"):
            found = _train(name, dtype)
        problems += [f"{name}{difference}" for difference in _differences(plain, found)]
    return problems


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float32, marks=pytest.mark.soak), torch.float64, torch.bfloat16],
    ids=str,
)
def test_parameters_and_state_are_the_single_device_ones(
    ranks: Ranks, world_size: int, dtype: torch.dtype
) -> None:
    assert ranks(world_size, every_optimizer, dtype) == [[]] * world_size


def _small(count: int = 3) -> list[nn.Parameter]:
    return _parameters()[:count]


def _both(rank: Rank, body: Callable[[bool], Any]) -> list[str]:
    """What a piece of a script returns, on one device and under zero1."""
    with rank.session():  # every rank updates everything, by the same kernels
        plain = body(False)
    with rank.session("zero1"):
        found = body(True)
    return list(_differences(plain, found))


def _is_cut(optimizer: Any) -> bool:
    return isinstance(vars(optimizer)["state"], CutState)


def _adam(parameters: list[nn.Parameter], steps: int = 2, **options: Any) -> torch.optim.Adam:
    optimizer = _O.Adam(parameters, **options)
    for step in range(steps):
        _gradients(parameters, step)
        optimizer.step()
    return optimizer


def _values(*things: Any) -> list[Any]:
    """Tensors to compare, as they are now."""
    return [copy.deepcopy(thing) for thing in things]


def copied_and_pickled(rank: Rank) -> list[str]:
    def body(cut: bool) -> Any:
        parameters = _small()
        optimizer = _adam(parameters)
        assert _is_cut(optimizer) == cut
        pair = copy.deepcopy((parameters, optimizer))
        read = io.BytesIO()
        torch.save(optimizer, read)
        again = torch.load(io.BytesIO(read.getvalue()), weights_only=False)
        also = pickle.loads(pickle.dumps(optimizer))
        for step in (7, 8):
            for each in (parameters, pair[0]):
                _gradients(each, step)
            optimizer.step()
            pair[1].step()
        return _values(
            parameters,
            optimizer.state_dict(),
            *pair[0],
            pair[1].state_dict(),
            again.state_dict(),
            also.state_dict(),
        )

    return _both(rank, body)


def saved_and_loaded(rank: Rank) -> list[str]:
    """A state dict of one device continues under zero1, and one of zero1 on one device."""

    def start() -> tuple[list[nn.Parameter], Any]:
        parameters = _small()
        return parameters, _values(_adam(parameters).state_dict())[0]

    def resume(parameters: list[nn.Parameter], state: Any) -> Any:
        optimizer = _adam(parameters, 0, lr=0.5)
        optimizer.load_state_dict(state)
        _gradients(parameters, 5)
        optimizer.step()
        return _values(parameters, optimizer.state_dict())

    with rank.session():
        expected = resume(*start())
        single = start()
    with rank.session("zero1"):
        cut = start()
        problems = list(_differences(expected, resume(*single)))
    with rank.session():
        return problems + list(_differences(expected, resume(*cut)))


def read_and_written(rank: Rank) -> list[str]:
    def body(cut: bool) -> Any:
        parameters = _small()
        optimizer = _adam(parameters)
        assert _is_cut(optimizer) == cut
        seen = _values(optimizer.state[parameters[0]]["exp_avg"].norm(), len(optimizer.state))
        optimizer.state[parameters[0]]["exp_avg"].mul_(0.5)
        del optimizer.state[parameters[1]]
        _gradients(parameters, 3)
        optimizer.step()
        assert _is_cut(optimizer) == cut
        seen += _values(parameters, optimizer.state_dict())
        optimizer.state.clear()
        _gradients(parameters, 4)
        optimizer.step()
        return seen + _values(parameters, optimizer.state_dict())

    return _both(rank, body)


def _after_letting_go(parameters: list[nn.Parameter], optimizer: Any, cut: bool) -> list[Any]:
    """What a step gives when nobody holds the state any more: it is in parts again."""
    _gradients(parameters, 6)
    optimizer.step()
    assert _is_cut(optimizer) == cut
    return _values(parameters, optimizer.state_dict())


def held_by_the_script(rank: Rank) -> list[str]:
    """What a script keeps of the state goes on changing, as on one device."""

    def body(cut: bool) -> Any:
        seen: list[Any] = []
        for take in (
            lambda optimizer, parameter: optimizer.state,
            lambda optimizer, parameter: optimizer.state[parameter],
            lambda optimizer, parameter: optimizer.state[parameter]["exp_avg"],
            lambda optimizer, parameter: optimizer.state_dict(),
        ):
            parameters = _small()
            optimizer = _adam(parameters)
            kept = take(optimizer, parameters[0])
            for step in (4, 5):
                _gradients(parameters, step)
                optimizer.step()
                assert not _is_cut(optimizer)
                seen += _values(kept if isinstance(kept, torch.Tensor) else list(kept.values()))
            del kept
            seen += _after_letting_go(parameters, optimizer, cut)
        return seen

    return _both(rank, body)


def held_by_its_memory(rank: Rank) -> list[str]:
    """What lies in the memory of the state, and is no reference to a tensor of it, goes on changing too."""

    def body(cut: bool) -> Any:
        seen: list[Any] = []
        for take in (
            lambda moment: moment.numpy(),
            lambda moment: moment.detach(),
            lambda moment: moment.data,
            torch.from_dlpack,
            lambda moment: moment[1],
            lambda moment: moment.untyped_storage(),
        ):
            parameters = _small()
            optimizer = _adam(parameters)
            kept = take(optimizer.state[parameters[0]]["exp_avg"])
            for step in (4, 5):
                _gradients(parameters, step)
                optimizer.step()
                assert not _is_cut(optimizer)
                seen.append(torch.tensor(kept.tolist()))
            if not isinstance(kept, torch.UntypedStorage):
                kept[:] *= 2
            del kept
            seen += _after_letting_go(parameters, optimizer, cut)
        return seen

    return _both(rank, body)


def held_and_loaded(rank: Rank) -> list[str]:
    """What a script loads is what the optimizer goes on in, so that to load it again is no way back."""

    def body(cut: bool) -> Any:
        seen: list[Any] = []
        parameters = _small()
        optimizer = _adam(parameters)
        saved = _values(optimizer.state_dict())[0]
        _gradients(parameters, 3)
        optimizer.step()
        assert _is_cut(optimizer) == cut
        for step in (4, 5, 6):
            optimizer.load_state_dict(saved)
            _gradients(parameters, step)
            optimizer.step()
            assert not _is_cut(optimizer)
            seen += _values(saved)
        del saved
        _gradients(parameters, 7)
        optimizer.step()
        assert _is_cut(optimizer) == cut
        return seen + _values(parameters, optimizer.state_dict())

    return _both(rank, body)


def held_from_the_beginning(rank: Rank) -> list[str]:
    """State that is read before the first step is empty, and fills."""

    def body(cut: bool) -> Any:
        parameters = _small()
        optimizer = _adam(parameters, 0)
        state = optimizer.state
        _gradients(parameters, 1)
        optimizer.step()
        seen = _values(list(state.values()))
        del state
        _gradients(parameters, 2)
        optimizer.step()
        assert _is_cut(optimizer) == cut
        return seen + _values(parameters, optimizer.state_dict())

    return _both(rank, body)


def with_a_closure_and_hooks(rank: Rank) -> list[str]:
    def body(cut: bool) -> Any:
        parameters = _small(2)
        optimizer = _O.Adam(parameters)
        told: list[Any] = []
        groups = optimizer.param_groups[0]

        def tell(*_: Any) -> None:
            told.append([each is parameter for each, parameter in zip(groups["params"], parameters)])
            told.append(parameters[0].detach().clone())

        def closure() -> torch.Tensor:
            assert torch.is_grad_enabled()
            optimizer.zero_grad()
            loss = torch.stack([parameter.square().sum() for parameter in parameters]).sum()
            _gradients(parameters, len(told))
            return loss.detach()

        optimizer.register_step_pre_hook(tell)
        optimizer.register_step_post_hook(tell)
        losses = [optimizer.step(closure) for _ in range(3)]
        return _values(parameters, losses, told, optimizer.state_dict())

    return _both(rank, body)


def parameters_come_and_change(rank: Rank) -> list[str]:
    def body(cut: bool) -> Any:
        parameters = _parameters()
        late = parameters.pop()
        parameters[0].requires_grad_(False)
        optimizer = _O.AdamW(parameters)
        _gradients(parameters, 0, absent=(0,))
        optimizer.step()
        optimizer.add_param_group({"params": [late], "lr": 0.1})
        parameters[0].requires_grad_()
        for step in (1, 2, 3):
            _gradients([*parameters, late], step)
            optimizer.step()
            if step == 1:  # other memory, as an average of weights that is swapped in
                parameters[0].data = parameters[0].data.clone()
            if step == 2:  # another kind of tensor altogether
                for parameter in (*parameters, late):
                    parameter.data = parameter.data.double()
                    parameter.grad = None
                optimizer.load_state_dict(optimizer.state_dict())
        assert _is_cut(optimizer) == cut
        return _values(parameters, late, optimizer.state_dict())

    return _both(rank, body)


def laid_out_anew(rank: Rank) -> list[str]:
    """State that was cut before a parameter was given another order of axes is gathered in that of then."""

    def body(cut: bool) -> Any:
        parameters = _parameters()[3:6]
        optimizer = _adam(parameters, fused=False)
        formats = (torch.contiguous_format, torch.channels_last, torch.contiguous_format)
        for step, order in enumerate(formats, 2):
            parameters[1].data = parameters[1].data.contiguous(memory_format=order)
            parameters[2].data = (
                parameters[2].data.t().contiguous().t() if step % 2 else parameters[2].data + 0
            )
            assert _is_cut(optimizer) == cut
            _gradients(parameters, step)
            optimizer.step()
        states = optimizer.state_dict()["state"]
        return _values(parameters, [[each.contiguous() for each in one.values()] for one in states.values()])

    return _both(rank, body)


def pruned_and_grown(rank: Rank) -> list[str]:
    """State is gathered in the shape that its parameter had, and a script gives both another one."""

    def body(cut: bool) -> Any:
        parameters = _small(2)
        optimizer = _adam(parameters)
        seen: list[Any] = []
        for step, rows in enumerate((torch.arange(5, 20), torch.arange(30) % 15), 4):
            assert _is_cut(optimizer) == cut
            parameters[0].data = parameters[0].data[rows]
            parameters[0].grad = None
            state = optimizer.state[parameters[0]]
            seen += _values(state)
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = state[key][rows]
            del state
            _gradients(parameters, step)
            optimizer.step()
        return seen + _values(parameters, optimizer.state_dict())

    return _both(rank, body)


def two_parameters_in_one_memory(rank: Rank) -> list[str]:
    def body(cut: bool) -> Any:
        memory = torch.linspace(-1, 1, 2000)
        parameters = [nn.Parameter(memory[:1500]), nn.Parameter(memory[700:]), *_small(1)]
        optimizer = _adam(parameters[:1], 2, lr=0.1)
        optimizer.add_param_group({"params": parameters[1:]})
        for step in (2, 3):
            _gradients(parameters, step)
            optimizer.step()
        return _values(memory, optimizer.state_dict())

    return _both(rank, body)


def one_parameter_in_two_optimizers(rank: Rank) -> list[str]:
    def body(cut: bool) -> Any:
        parameters = _small()
        first, second = _O.Adam(parameters), _O.SGD(parameters[::-1], 0.1, momentum=0.9)
        for step in range(3):
            _gradients(parameters, step)
            first.step()
            second.step()
        return _values(parameters, first.state_dict(), second.state_dict())

    return _both(rank, body)


def scaled_gradients(rank: Rank) -> list[str]:
    """An overflow skips the step, and a fused step takes the scale off gradients that the script reads."""

    def body(cut: bool) -> Any:
        seen: list[Any] = []
        for fused in (False, True):
            parameters = _small(2)
            optimizer = _O.Adam(parameters, fused=fused)
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
            for step in range(4):
                optimizer.zero_grad()
                scaler.scale(parameters[0].sum())
                _gradients(parameters, step)
                if step == 1:
                    parameters[0].grad[0, 0] = float("inf")
                scaler.step(optimizer)
                scaler.update()
                seen.append([parameter.grad.clone() for parameter in parameters])
            seen += _values(parameters, optimizer.state_dict(), scaler.state_dict())
        return seen

    return _both(rank, body)


def what_is_not_elementwise(rank: Rank) -> list[str]:
    class Own(torch.optim.Adam):
        """It might look at whole tensors."""

    def body(cut: bool) -> Any:
        parameters = _small(2)
        optimizer = Own(parameters)
        plain = _O.SGD(parameters, 0.1)
        _gradients(parameters, 0)
        optimizer.step()
        plain.step()
        assert not _is_cut(optimizer)
        assert not _is_cut(plain)
        return _values(parameters, optimizer.state_dict())

    problems = _both(rank, body)
    with rank.session("zero1") as session:
        Own(_small(1)).step()
        _O.Adam(_small(1), differentiable=True).step()
        told = without_codes(session.notes)
    said = (
        "of Own is whole on every rank: state=zero1 cuts",
        "of Adam is whole on every rank: a step with differ",
    )
    fine = len(told) == 2 and all(words in note for words, note in zip(said, told))
    return problems + ([] if fine else [str(told)])


def in_another_thread(rank: Rank) -> list[str]:
    with rank.session("zero1"):
        optimizer = _adam(_small())
        failures: list[str] = []

        def read() -> None:
            try:
                optimizer.state_dict()
            except UsageError as error:
                failures.append(str(error))

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        assert len(optimizer.state) == 3
    return [] if len(failures) == 1 and "in another thread" in failures[0] else ["nothing was refused"]


def released(rank: Rank) -> list[str]:
    """A script that turns out to be distributed gets its optimizers back."""
    parameters = _small()
    with rank.session():
        expected = _values(_adam(_small()).state_dict())
    with rank.session("zero1") as session:
        optimizer = _adam(parameters)
        gone = _adam(_small())
        if rank.rank == 0:
            del gone
            gc.collect()
        session.state.release()
    found = _values(optimizer.state_dict())
    _gradients(parameters, 9)
    optimizer.step()
    return list(_differences(expected, found))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(
    "scenario",
    [
        copied_and_pickled,
        saved_and_loaded,
        read_and_written,
        held_by_the_script,
        held_by_its_memory,
        held_and_loaded,
        held_from_the_beginning,
        with_a_closure_and_hooks,
        parameters_come_and_change,
        laid_out_anew,
        pruned_and_grown,
        two_parameters_in_one_memory,
        one_parameter_in_two_optimizers,
        scaled_gradients,
        what_is_not_elementwise,
        in_another_thread,
        released,
    ],
)
def test_a_script_sees_the_single_device_optimizer(ranks: Ranks, world_size: int, scenario: Any) -> None:
    assert ranks(world_size, scenario) == [[]] * world_size


def _bytes(tensors: Any) -> int:
    """Of what tensors lie in, each once."""
    found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(found.values())


def memory(rank: Rank) -> tuple[int, int]:
    """Bytes of parameters, gradients and state, and the number of parameters' elements."""
    with rank.session("zero1"):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(300, 500), nn.Tanh(), nn.Linear(500, 200), nn.Tanh(), nn.Linear(200, 10)
        )
        optimizer = _O.Adam(net.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.randn(8, 300)).square().mean().backward()
            optimizer.step()
        parameters = list(net.parameters())
        held = vars(optimizer)["state"].local
        state = [value for entry in held.values() for value in entry.values()]
        views = [key for key in held if all(key is not parameter for parameter in parameters)]
        gradients = [parameter.grad for parameter in parameters]
        total = _bytes([*parameters, *gradients, *state, *views])
    return total, sum(parameter.numel() for parameter in parameters)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_state_takes_its_share_of_memory(ranks: Ranks, world_size: int) -> None:
    for total, elements in ranks(world_size, memory):
        assert total <= 1.05 * (8 * elements + 8 * elements / world_size)
