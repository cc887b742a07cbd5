"""Private names of torch that ronde uses, under public ones, with reasons.

No other file uses one: `tests/patching/test_torch_internals.py` lists violations, and checks each torch for
presence and signatures. `_parameters`, `_modules` and `_buffers` of modules may be used anywhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import forward_ad
from torch.utils import checkpoint
from torch.utils.data import dataloader

from ronde.errors import UsageError

_C: Any = torch._C

try:
    from torch import _guards
    from torch._functorch import pyfunctorch
    from torch._subclasses import fake_tensor
    from torch.utils import _python_dispatch, _pytree
    from torch.utils.data._utils import fetch

    # Switches of dispatch, cheaper than their public forms or without one.
    DisableTorchFunction = torch._C.DisableTorchFunction  # of subclasses and modes
    DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass  # modes stay on
    DisableTorchDispatch = _C._DisableTorchDispatch  # a collective is seen by no mode
    EnableTorchFunction = _C._EnableTorchFunction  # backward of a global tensor, which switches it off
    set_grad_enabled = _C._set_grad_enabled  # a fifth of the time of torch.set_grad_enabled

    # Modes: observation is beneath the script's own, and lists the active ones.
    TorchDispatchMode = _python_dispatch.TorchDispatchMode
    disable_current_modes = _python_dispatch._disable_current_modes
    current_dispatch_modes = _python_dispatch._get_current_dispatch_mode_stack
    pop_dispatch_mode = _python_dispatch._pop_mode_temporarily
    current_function_modes = torch.overrides._get_current_function_mode_stack
    pop_function_mode = torch.overrides._pop_mode_temporarily
    is_in_function_mode = _C._is_torch_function_mode_enabled
    count_function_modes = _C._len_torch_function_stack
    count_dispatch_modes = _C._len_torch_dispatch_stack
    function_mode_at = _C._get_function_stack_at
    push_function_mode = _C._push_on_torch_function_stack
    take_function_mode = _C._pop_torch_function_stack
    HigherOrderOperator = torch._ops.HigherOrderOperator  # its `func` has no schema
    DispatchKey = _C.DispatchKey  # whether an operation is composed of others
    has_kernel = _C._dispatch_has_kernel_for_dispatch_key

    # Tensors.
    TensorBase = _C.TensorBase  # `grad` and `data` beneath a subclass's own
    make_wrapper_subclass: Any = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
    FakeTensor = fake_tensor.FakeTensor  # has no data
    FakeTensorMode = fake_tensor.FakeTensorMode
    storage_use_count = _C._storage_Use_Count  # whether a buffer may be used again
    unsafe_preserve_version_counter = torch.autograd._unsafe_preserve_version_counter  # unseen by autograd
    safe_softmax: Any = torch._safe_softmax  # that of attention: a row that sees no key is zero
    nested_tensor_from_mask = torch._nested_tensor_from_mask_left_aligned  # the transformer's fast path
    pytree = _pytree  # flattens outputs as torch does, with the classes that scripts register
    foreach_add_ = torch._foreach_add_
    foreach_copy_ = torch._foreach_copy_
    foreach_mul_ = torch._foreach_mul_
    foreach_norm = torch._foreach_norm

    # Attention of a block, with the logarithms of its sums of exponentials, by which blocks are merged.
    _aten: Any = torch.ops.aten
    cast = _aten._to_copy.default  # `to` beneath autograd
    attention_on_cpu = _aten._scaled_dot_product_flash_attention_for_cpu.default
    attention_on_cpu_backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default

    # Autograd.
    FunctionBase = _C._FunctionBase  # base of the graph nodes of the script's autograd functions
    StopRecomputationError = checkpoint._StopRecomputationError  # ends recomputation early
    current_graph_task_id = _C._current_graph_task_id  # -1 outside of a backward
    autograd_sequence_number = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]  # nodes by age
    execution_engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]  # queue_callback
    saved_tensor_hooks = _C._autograd  # its functions push, pop and show the hooks of saved tensors

    # Compilers and transforms.
    peek_interpreter_stack = _C._functorch.peek_interpreter_stack  # torch.func at work
    temporarily_clear_interpreter_stack = pyfunctorch.temporarily_clear_interpreter_stack
    get_tracing_state = _C._get_tracing_state  # a TorchScript trace is set aside, and put back
    set_tracing_state = _C._set_tracing_state
    ONNXTracedModule = torch.jit._trace.ONNXTracedModule  # type: ignore[attr-defined]
    CompileContext = _guards.CompileContext  # whether files are the compiler's
    VF: Any = torch._VF  # LSTM and GRU call it past torch.nn.functional

    # Modules, loaders and files.
    BatchNorm = nn.modules.batchnorm._BatchNorm  # base of all batch norms
    module_internals = nn.modules.module  # hooks of all modules
    BaseDataLoaderIter = dataloader._BaseDataLoaderIter  # batches are cut between index and fetch
    DatasetKind = dataloader._DatasetKind
    MapDatasetFetcher = fetch._MapDatasetFetcher
    IterableDatasetFetcher = fetch._IterableDatasetFetcher
    zipfile_writer: Any = torch.serialization._open_zipfile_writer_file  # type: ignore[attr-defined]  # by path or file

    for _owner, _names in (
        (BaseDataLoaderIter, "_reset _next_index"),
        (module_internals, "_global_forward_hooks _global_forward_pre_hooks"),
        (module_internals, "_global_backward_hooks _global_backward_pre_hooks"),
        (nn.Module, "_apply _call_impl _compiled_call_impl"),
        (torch.Tensor, "_base _make_subclass _version"),
        (torch.autograd, "_engine_run_backward"),  # replaced: backward() and grad() both call it
        (torch.UntypedStorage, "_cdata"),
        (saved_tensor_hooks, "_push_saved_tensors_default_hooks _pop_saved_tensors_default_hooks"),
        (saved_tensor_hooks, "_top_saved_tensors_default_hooks"),
        (dist.Backend, "_plugins"),  # a registered backend is taken back
        (dist.ProcessGroup, "_register_backend"),
    ):
        for _name in _names.split():
            getattr(_owner, _name)
except (AttributeError, ImportError) as error:
    raise UsageError(
        f"torch {torch.__version__} lacks a name that ronde needs ({error}); install one that ronde was "
        "tried with: pip install 'torch==2.13.0' [R185]"
    ) from None


def forward_ad_level() -> int:
    """Return the level of forward-mode differentiation that is entered, -1 outside."""
    return forward_ad._current_level


def all_gather_single(group: Any, out: torch.Tensor, flat: torch.Tensor) -> Any:
    """Start to gather `flat` [n] of all ranks into `out` [ranks * n]."""
    public = getattr(group, "all_gather_single", None)  # since torch 2.14
    return (public or group._allgather_base)(out, flat)


def all_to_all_single(
    group: Any, out: torch.Tensor, flat: torch.Tensor, out_sizes: list[int], sizes: list[int]
) -> Any:
    """Start to exchange consecutive pieces of `flat` with all ranks, into `out`."""
    public = getattr(group, "all_to_all_single", None)  # since torch 2.14
    return (public or group.alltoall_base)(out, flat, out_sizes, sizes)


def reduce_scatter_single(group: Any, out: torch.Tensor, flat: torch.Tensor) -> Any:
    """Start to sum `flat` [ranks * n] over ranks; `out` [n] gets this rank's part."""
    public = getattr(group, "reduce_scatter_single", None)  # since torch 2.14
    return (public or group._reduce_scatter_base)(out, flat)


def backend_plugins() -> Any:
    """Return the libraries of collectives that other packages have registered, by upper-case name."""
    return dist.Backend._plugins


def backend_options(store: Any, rank: int, world_size: int, timeout: Any) -> Any:
    """Return the options with which torch asks a registered library for a group."""
    options: Any = _C._distributed_c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = store, rank, world_size
    options.timeout, options.group_id = timeout, "ronde"
    options.global_ranks_in_group = list(range(world_size))
    return options


def gloo_options(device: Any, timeout: Any, threads: int) -> Any:
    """Return options of a `ProcessGroupGloo` on one device, with `threads` threads."""
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # `Options` is the base class
    options._devices, options._timeout, options._threads = [device], timeout, threads
    return options


def device_constructors() -> Any:
    """Return the functions that a default device applies to. Torch caches them at first use."""
    from torch.utils._device import _device_constructors

    return _device_constructors()


def skip_code(code: Any) -> None:
    """Make torch.compile pass over a piece of code. This loads the compiler, which takes seconds."""
    from torch._dynamo.eval_frame import skip_code as skip

    skip(code)
