"""Two examples for the help of each command."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["EXAMPLES"]

# By the words of the command, subcommands included.
EXAMPLES: Mapping[str, tuple[str, str]] = {
    "run": (
        "ronde run --ranks 4 train.py --epochs 10",
        "ronde run -H node1:8,node2:8 --plan zero2,precision=bf16 --checkpoint runs/a --resume train.py",
    ),
    "horovodrun": (
        "ronde horovodrun -np 4 python train.py",
        "ronde horovodrun -np 16 -H node1:8,node2:8 python train.py",
    ),
    "bpslaunch": (
        "NVIDIA_VISIBLE_DEVICES=0,1 DMLC_ROLE=worker ronde bpslaunch python train.py",
        "ronde bpslaunch python train.py",
    ),
    "verify": (
        "ronde verify --ranks 2 train.py",
        "ronde verify --ranks 4 --plan tensor=2 --steps 5 --plot losses.svg train.py",
    ),
    "top": ("ronde top", "ronde top --once runs/a"),
    "report": ("ronde report", "ronde report runs/a --out a.html"),
    "ui": ("ronde ui", "ronde ui runs/a --host 0.0.0.0 --port 8080"),
    "plan": ("ronde plan show zero2,precision=bf16", "ronde plan search --devices 4 train.py"),
    "plan show": (
        "ronde plan show zero2,precision=bf16",
        "ronde plan show tensor=2 --ranks 4 --script train.py",
    ),
    "plan search": (
        "ronde plan search train.py",
        "ronde plan search --cluster cluster.toml --tokens 100e9 --deadline 14d train.py --epochs 3",
    ),
    "launch": (
        "ronde launch k8s --image team/train:1 --pods 2 --print train.py",
        "ronde launch k8s --image team/train:1 --ranks-per-pod 8 --gpus --print train.py",
    ),
    "launch k8s": (
        "ronde launch k8s --image team/train:1 --pods 2 --print train.py",
        "ronde launch k8s --image team/train:1 --kind trainjob --gpus --print -- --plan zero2 train.py",
    ),
    "doctor": ("ronde doctor -H node1:8,node2:8", "ronde doctor runs/a"),
    "explain": ("ronde explain R175", "ronde explain launching"),
    "server": (
        "ronde server --listen tcp://10.0.0.5:4000 --workers 2",
        "ronde server --listen ipc://tables --workers 2 --state tables",
    ),
    "bench": ("ronde bench dp --against ddp", "ronde bench overhead --workloads tiny"),
    "bench dp": (
        "ronde bench dp --against ddp,fsdp2 --workloads transformer",
        "ronde bench dp --method dlperf --workloads bert --json bert.json",
    ),
    "bench overhead": (
        "ronde bench overhead --workloads tiny,mlp",
        "ronde bench overhead --device cuda --json overhead.json",
    ),
    "bench collectives": (
        "ronde bench collectives --operations all-reduce --sizes 4KB,4MB",
        "ronde bench collectives --against gloo,mpi --ranks 4",
    ),
    "bench memory": (
        "ronde bench memory --workload gpt --plans zero1,zero3",
        "ronde bench memory --plans recompute=full --plot memory.svg",
    ),
    "bench parallel": (
        'ronde bench parallel --plans "tensor=2;pipeline=2"',
        "ronde bench parallel --workload gpt --ranks 2 --plans context=2 --pairs 5",
    ),
    "bench show": ("ronde bench show dp.json", "ronde bench show memory.json --plot memory.svg"),
    "export": ("ronde export runs/a --out model", "ronde export checkpoints --to hf --out model"),
    "import": (
        "ronde import model.safetensors checkpoints --out new-checkpoints",
        "ronde import llama/ checkpoints --out new-checkpoints --model model",
    ),
    "serve": ("ronde serve runs/a", "ronde serve model --host 0.0.0.0 --port 8080"),
}
