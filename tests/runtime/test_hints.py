"""The sentence behind a traceback where running on many ranks has to do with the error."""

from __future__ import annotations

import errno
import multiprocessing
import re
from multiprocessing import synchronize

import pytest

from codes import without_code
from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.run_spec import RunSpec
from ronde.runtime import hints


def config(device: str = "cpu", ranks: int = 2) -> RankConfig:
    place = RankPlace(
        rank=0,
        world_size=ranks,
        local_rank=0,
        local_world_size=ranks,
        run_dir="/run",
        store="file:///run/store",
        device=device,
    )
    return RankConfig(run=RunSpec(script="train.py"), place=place)


def hint(error: BaseException, config: RankConfig) -> str:
    """What is added behind a traceback, without its code."""
    return without_code(hints.hint(error, config))


def test_a_script_that_is_distributed_already() -> None:
    assert hint(KeyError("LOCAL_RANK"), config()) == (
        "the script reads LOCAL_RANK itself: it is written for many ranks already. Run it with "
        "`ronde run --native`, or leave the ranks out of the script"
    )


@pytest.mark.parametrize(
    "text",
    [
        "unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device (28)",
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers "
        "are out of shared memory. Please try to raise your shared memory limit.",
    ],
)
def test_little_shared_memory(text: str) -> None:
    said = re.sub(r"/dev/shm, [\d.]+ \w+", "/dev/shm, SIZE", hint(RuntimeError(text), config()))
    assert said == (
        "shared memory (/dev/shm, SIZE) is too small for the batches that loader workers hand over on 2 "
        "ranks: make it larger (docker run --shm-size=8g), or use a smaller num_workers"
    )


def test_a_device_of_another_rank() -> None:
    error = RuntimeError("CUDA error: invalid device ordinal")
    assert hint(error, config("cuda")) == (
        'each rank sees one CUDA device, its own: write "cuda" or "cuda:0" instead of another number'
    )
    assert hint(error, config("cpu")) == ""


@pytest.mark.parametrize(
    "text",
    [
        "Expected all tensors to be on the same device, but got mat1 is on cpu, different from other tensors "
        "on cuda:0 (when checking argument in method wrapper_CUDA_addmm)",
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same or input "
        "should be a MKLDNN tensor and weight is a dense tensor",
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
        "Tensor on device cpu is not on the expected device cuda:0!",
    ],
)
def test_a_model_on_another_device_than_its_batch(text: str) -> None:
    assert hint(RuntimeError(text), config("cuda")) == (
        "a model and its inputs must be on one device, here the device of the ranks: "
        'model.to("cuda") before the optimizer is made, and .to("cuda") for every tensor of a batch'
    )


@pytest.mark.parametrize(
    "text",
    [
        "Expected all tensors to be on the same device, but got mat1 is on cpu, different from meta",
        "Tensor on device meta is not on the expected device cpu!",
        "Input and parameter tensors are not at the same device, found input tensor at cpu and parameter "
        "tensor at meta",
        "Tensor.item() cannot be called on meta tensors",
    ],
)
def test_a_model_without_values(text: str) -> None:
    assert hint(RuntimeError(text), config()) == (
        'tensors on the device "meta" have no values: leave that device out of the script, or call '
        'model.to_empty(device="cpu") and load the parameters'
    )


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("Torch not compiled with CUDA enabled"),
        RuntimeError("No CUDA GPUs are available"),
        RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
    ],
)
def test_a_device_that_is_not_there(error: Exception) -> None:
    assert hint(error, config()) == (
        'the script asks for a CUDA device, and these ranks are on the CPU: write device = "cuda" if '
        'torch.cuda.is_available() else "cpu", and use it in place of "cuda"'
    )
    assert hint(error, config("cuda")) == ""


@pytest.mark.parametrize(
    ("named", "kind", "base"),
    [
        ("<class 'ronde.tensor.global_tensor.GlobalTensor'>.", "GlobalTensor", "torch.Tensor"),
        ("no rule for DeferredScalar", "DeferredScalar", "torch.Tensor"),
        ("got ShardedParameter", "ShardedParameter", "torch.nn.Parameter"),
    ],
)
def test_the_exact_class_of_what_is_in_parts(named: str, kind: str, base: str) -> None:
    assert hint(RuntimeError(f"Need type to be np.ndarray or torch.Tensor, found {named}"), config()) == (
        f"a {kind} is a sharded {base}, of a subclass: in place of type(...) write isinstance(..., {base}); "
        "if a library compares types, give it a whole value, torch.from_numpy(x.numpy(force=True)), or run "
        "the script by python"
    )


def test_semaphores_without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(synchronize._multiprocessing, "SemLock", full)
    with pytest.raises(OSError, match="No space left") as raised:
        multiprocessing.Lock()
    assert hint(raised.value, config()).startswith("shared memory (/dev/shm, ")
    assert hint(OSError(errno.ENOSPC, "No space left on device"), config()) == ""


class ZMQError(Exception):
    """As that of ZMQ: no OSError."""

    def __init__(self) -> None:
        super().__init__("Address in use (addr='tcp://*:5555')")
        self.errno = errno.EADDRINUSE


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("The server socket has failed to listen. port: 29533, code: -98, name: EADDRINUSE"),
        RuntimeError("Failed to bind to address [::]:50051; set GRPC_VERBOSITY=debug environment variable"),
        OSError(errno.EADDRINUSE, "error while attempting to bind on address: address already in use"),
        ZMQError(),
    ],
    ids=["torch", "grpc", "system", "zmq"],
)
def test_an_address_in_use(error: Exception) -> None:
    assert hint(error, config()) == (
        "another program on this host has the address, a Unix socket's file was left there, or several "
        "ranks open it. Give each rank its own, PORT + ronde.rank(), or open it behind `if "
        "ronde.is_main():`. A script that starts ranks itself runs by python, or with --ranks 1"
    )
    assert hint(error, config(ranks=1)) == ""


def test_a_cpu_without_a_narrow_lstm() -> None:
    error = RuntimeError(
        "could not create a primitive descriptor for the LSTM forward propagation primitive."
    )
    assert hint(error, config()) == (
        "torch has no kernel of oneDNN for this on this CPU, mostly an LSTM in 16 bits: leave precision=bf16 "
        "out of the plan, or autocast out of the script, or set torch.backends.mkldnn.enabled = False there"
    )


def test_other_errors_speak_for_themselves() -> None:
    assert hint(KeyError("label"), config()) == ""
    assert hint(ValueError("bad label"), config()) == ""
    assert hint(TypeError("argument 'input' (position 1) must be Tensor, not NoneType"), config()) == ""
    text = "Input type (torch.DoubleTensor) and weight type (torch.FloatTensor) should be the same"
    assert hint(RuntimeError(text), config()) == ""
