"""Options of other launchers, each with ronde's counterpart or advice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ronde.errors import UsageError

__all__ = ["OF_LAUNCHERS", "OPTIONS", "LauncherLine", "LauncherOption", "option_named", "two_numbers"]


@dataclasses.dataclass(kw_only=True, slots=True)
class LauncherLine:
    """The options of a command line, as far as they were read.

    Attributes:
        launcher: the last launcher that was named; "" without one.
        options: ronde's own options, with their values.
        taken: ronde's options that replace options of other launchers, with the typed option.
        ranks: the number of ranks, and the typed option; None: not given.
        per_host: whether `ranks` is the number on each host.
        plan: the text of --plan; "" without one.
        items: items of the plan that options translate to, by subject.
        left_out: options that ronde does not need.
        rendezvous: torchrun's rendezvous options.
        module: whether the script is a module.
    """

    launcher: str = ""
    options: list[str] = dataclasses.field(default_factory=list)
    taken: dict[str, str] = dataclasses.field(default_factory=dict)
    ranks: tuple[str, str] | None = None
    per_host: bool = False
    plan: str = ""
    items: dict[str, str] = dataclasses.field(default_factory=dict)
    left_out: list[str] = dataclasses.field(default_factory=list)
    rendezvous: dict[str, str] = dataclasses.field(default_factory=dict)
    module: bool = False


Take = Callable[[LauncherLine, str, str], None]
"""Takes an option into a line: the line, the option as typed, its value ("" for a flag)."""


@dataclasses.dataclass(frozen=True, slots=True)
class LauncherOption:
    """An option of another launcher: the number of its value words, and its meaning."""

    values: int
    take: Take


def option_named(word: str, launcher: str = "") -> LauncherOption | None:
    """Return a launcher's option by its name, with underscores or dashes."""
    name = word.replace("_", "-")
    own = OF_LAUNCHERS.get(launcher, _UNNAMED)
    return own.get(name) or OPTIONS.get(name)


def two_numbers(first: str, second: str) -> UsageError:
    """Return the error for two options with different numbers of ranks."""
    return UsageError(f"{first} and {second} give two numbers of ranks; keep one [R142]")


def _ranks(*, per_host: bool = False) -> LauncherOption:
    def take(line: LauncherLine, option: str, value: str) -> None:
        if value in ("auto", "gpu", "all", "-1"):
            value = "auto"
        elif "," in value:
            _refuse_devices(line, option, value)
        elif not value.isdecimal():
            raise UsageError(f"{option} {value} is not a number of ranks; try --ranks 2 [R142]")
        if line.ranks is not None and line.ranks[0] != value:
            raise two_numbers(line.ranks[1], f"{option} {value}")
        line.ranks = value, f"{option} {value}"
        line.per_host = per_host

    return LauncherOption(1, take)


def _refuse_devices(_line: LauncherLine, option: str, value: str) -> None:
    devices = value.rpartition(":")[2] if value.rpartition(":")[2][:1].isdigit() else "0,1"
    raise UsageError(
        f"{option} {value} chooses devices: ronde takes those of CUDA_VISIBLE_DEVICES, one for each rank; "
        f"write CUDA_VISIBLE_DEVICES={devices} before ronde [R143]"
    )


def _hosts(name: str) -> LauncherOption:
    def take(line: LauncherLine, option: str, value: str) -> None:
        line.rendezvous[name] = value
        line.left_out.append(f"{option} {value}")

    return LauncherOption(1, take)


def _same(option_of_ronde: str) -> LauncherOption:
    def take(line: LauncherLine, option: str, value: str) -> None:
        line.options += [option_of_ronde, value]
        line.taken[option_of_ronde] = option

    return LauncherOption(1, take)


def _restarts(line: LauncherLine, option: str, value: str) -> None:
    if value == "0":
        line.left_out.append(f"{option} {value}")
    else:
        line.options += ["--restarts", value]
        line.taken["--restarts"] = f"{option} {value}"


def _nothing(values: int = 0) -> LauncherOption:
    """Accept an option without effect, and list it as left out."""

    def take(line: LauncherLine, option: str, value: str) -> None:
        line.left_out.append(f"{option} {value}".strip())

    return LauncherOption(values, take)


def _item(about: str, words: Mapping[str, str] | str, *, weak: bool = False) -> LauncherOption:
    """Return a plan item for an option's value, or for a flag.

    Args:
        words: the item by the option's value ("" for none), or a pattern with {}, or the item of a flag.
        weak: whether another option may override it.
    """

    def take(line: LauncherLine, option: str, value: str) -> None:
        if isinstance(words, str):
            item = words.format(value)
        elif value.lower() in words:
            item = words[value.lower()]
        else:
            raise UsageError(f"{option} {value} is not available; choose among {', '.join(words)} [R144]")
        if not item:
            line.left_out.append(f"{option} {value}")
        elif not (weak and about in line.items):
            line.items[about] = item

    flag = isinstance(words, str) and "{}" not in words
    return LauncherOption(0 if flag else 1, take)


def _advice(values: int, text: str) -> LauncherOption:
    def take(_line: LauncherLine, option: str, value: str) -> None:
        raise UsageError(f"{option} {value}".strip() + f": {text}")

    return LauncherOption(values, take)


_PRECISIONS = {
    **dict.fromkeys(("no", "32", "32-true", "fp32", "none"), ""),
    **dict.fromkeys(("bf16", "bf16-mixed"), "precision=bf16"),
    **dict.fromkeys(("fp16", "16", "16-mixed"), "precision=fp16"),
    "tf32": "precision=tf32",
}
_SHARDING = {
    **dict.fromkeys(("full_shard", "1", "true"), "zero3"),
    **dict.fromkeys(("shard_grad_op", "2", "false"), "zero2"),
    **dict.fromkeys(("no_shard", "3"), "ddp"),
}
_STAGES = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}
_CPU = _advice(
    0, "ronde takes the CPU where no CUDA device is visible; write CUDA_VISIBLE_DEVICES= before ronde [R143]"
)
_EXCLUDE = _advice(1, "write the devices that are left as CUDA_VISIBLE_DEVICES=... before ronde [R143]")
_SCRIPTS_OWN = "this is decided in the script; write it there, so that plain Python has it too [R146]"
_BY_CONFIG = (
    "ronde reads no configuration of another launcher; its ZeRO stage is --plan zero1, zero2 or zero3, its "
    "precision precision=bf16 [R145]"
)
_BY_SLURM = (
    "nodes are chosen where Slurm allocates them; leave it out inside of an allocation, or write it "
    "behind salloc or sbatch [R150]"
)
_OUTPUT = "the output of every rank is in the run directory, as rank-N.log; leave it out [R146]"

_BY_NAMES: tuple[tuple[str, LauncherOption], ...] = (
    ("-n --np --num-proc --num-processes --ntasks --world-size --num-ranks --nprocs", _ranks()),
    (
        "--nproc-per-node --nproc --num-gpus --gpus --devices --gpus-per-node --ntasks-per-node",
        _ranks(per_host=True),
    ),
    ("--nnodes --num-machines --num-nodes --nodes", _hosts("nnodes")),
    ("--node-rank --machine-rank", _hosts("node-rank")),
    ("--master-addr --main-process-ip --main-address", _hosts("master-addr")),
    ("--master-port --main-process-port --main-port", _hosts("master-port")),
    *((f"--rdzv-{name}", _hosts(f"rdzv-{name}")) for name in ("backend", "endpoint", "id", "conf")),
    ("--max-restarts", LauncherOption(1, _restarts)),
    ("--log-dir --enable-each-rank-log", _same("--run-dir")),
    ("--num-cpu-threads-per-process", _same("--threads")),
    ("--host", _same("-H")),
    ("--machinefile", _same("--hostfile")),
    ("--standalone --multi-gpu --use-env --same-network --no-local-rank --gloo --nccl --verbose", _nothing()),
    ("--allow-run-as-root --oversubscribe --use-megatron-lm --no-ssh-check", _nothing()),
    ("--role --monitor-interval --start-method --rdzv-timeout --signals-to-handle", _nothing(1)),
    ("--bind-to --map-by --num-servers", _nothing(1)),
    ("--mca", _nothing(2)),
    *((f"--fsdp-{name}", _nothing(1)) for name in ("auto-wrap-policy", "backward-prefetch", "version")),
    ("--fsdp-transformer-layer-cls-to-wrap --fsdp-min-num-params --fsdp-forward-prefetch", _nothing(1)),
    ("--fsdp-state-dict-type --fsdp-use-orig-params --fsdp-sync-module-states", _nothing(1)),
    ("--fsdp-cpu-ram-efficient-loading --zero3-init-flag --zero3-save-16bit-model", _nothing(1)),
    ("--mixed-precision --precision", _item("precision", _PRECISIONS)),
    ("--fp16 --amp", _item("precision", "precision=fp16")),
    ("--bf16", _item("precision", "precision=bf16")),
    ("--use-fsdp", _item("state", "zero3", weak=True)),
    ("--fsdp-sharding-strategy --fsdp-reshard-after-forward", _item("state", _SHARDING)),
    ("--fsdp-offload-params", _item("offload", {"true": "offload=all", "false": ""})),
    ("--fsdp-activation-checkpointing", _item("recompute", {"true": "recompute=full", "false": ""})),
    # accelerate's own default is stage 2
    ("--use-deepspeed", _item("state", "zero2", weak=True)),
    ("--zero-stage", _item("state", _STAGES)),
    ("--offload-optimizer-device", _item("offload", {"cpu": "offload=optimizer", "none": ""}, weak=True)),
    ("--offload-param-device", _item("offload", {"cpu": "offload=all", "none": ""})),
    ("--strategy", _item("state", "{}")),
    ("--dynamo-backend", _item("compile", {"inductor": "compile=true", "no": ""})),
    *(
        (f"--{name}", _item("tensor", "tensor={}"))
        for name in ("megatron-lm-tp-degree", "tp", "tensor-parallel")
    ),
    ("--tensor-parallel-size --tensor-model-parallel-size", _item("tensor", "tensor={}")),
    ("--megatron-lm-pp-degree --pp", _item("pipeline", "pipeline={}")),
    ("--pipeline-parallel-size --pipeline-model-parallel-size", _item("pipeline", "pipeline={}")),
    ("--accelerator", _item("device", {"auto": "", "gpu": "", "cuda": ""})),
    ("--gpu-ids --include", LauncherOption(1, _refuse_devices)),
    ("--exclude", _EXCLUDE),
    ("--cpu --use-cpu", _CPU),
    ("--tpu", _advice(0, "ronde runs on CPUs and CUDA devices [R144]")),
    ("--config-file --deepspeed-config-file --deepspeed-config --deepspeed", _advice(1, _BY_CONFIG)),
    ("--gradient-accumulation-steps --gradient-clipping", _advice(1, _SCRIPTS_OWN)),
    (
        "--no-python",
        _advice(0, "ronde runs python scripts; other programs run by --native or ronde horovodrun [R146]"),
    ),
    ("--redirects --tee --local-ranks-filter", _advice(1, _OUTPUT)),
    (
        "--launcher",
        _advice(1, "ronde finds its hosts by -H, a hostfile or the scheduler; leave it out [R146]"),
    ),
    ("--autotuning", _advice(1, "the best plan is looked for by ronde plan search [R146]")),
)


def _table(*rows: tuple[str, LauncherOption]) -> Mapping[str, LauncherOption]:
    return MappingProxyType({name: option for names, option in rows for name in names.split()})


OPTIONS = _table(*_BY_NAMES)
"""Options of any launcher by their names, with dashes in place of underscores."""

_TORCHRUN = _table(("-r -t", _advice(1, _OUTPUT)))
_MPIRUN = _table(
    ("-np -c", _ranks()),
    ("-N -npernode --npernode -ppn", _ranks(per_host=True)),
    ("-host", _same("-H")),
    ("-hostfile -machinefile", _same("--hostfile")),
    ("-x", _same("--env")),
    ("-bind-to -map-by", _nothing(1)),
    ("-mca", _nothing(2)),
)
_SRUN = _table(
    ("-N", _hosts("nnodes")),
    ("-p --partition -x --exclude -w --nodelist -C --constraint -q --qos", _advice(1, _BY_SLURM)),
    ("-A --account -J --job-name -t --time -c --cpus-per-task -m --distribution --mem", _nothing(1)),
    ("--mpi --gres -G --gpus --gpus-per-task --gpus-per-node --gpu-bind --cpu-bind", _nothing(1)),
    ("-l --label -u --unbuffered -K --kill-on-bad-exit --exclusive --overlap", _nothing()),
    ("-o --output -e --error -i --input", _advice(1, _OUTPUT)),
)
_DEEPSPEED = _table(("-H", _same("--hostfile")), ("-i", LauncherOption(1, _refuse_devices)), ("-e", _EXCLUDE))
OF_LAUNCHERS: Mapping[str, Mapping[str, LauncherOption]] = MappingProxyType(
    {
        "torchrun": _TORCHRUN,
        "accelerate": _table(),
        "launch": _table(),
        "fabric": _table(),
        "deepspeed": _DEEPSPEED,
        "mpirun": _MPIRUN,
        "mpiexec": _MPIRUN,
        "srun": _SRUN,
    }
)
"""Options of one launcher only, or in its own sense, by launcher and name."""
_UNNAMED = MappingProxyType(
    {**_TORCHRUN, **_MPIRUN, "-N": _hosts("nnodes"), "-p": _same("--ssh-port")}  # -p: horovodrun's
)
"""Options for lines without a launcher's name."""
