"""Command lines of other launchers behind `ronde run`: the line in ronde's words, or the advice."""

# ruff: noqa: E501 - a line of a shell is one line

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

import pytest
import typer.main

from ronde.cli import app
from ronde.cli.launcher_options import OF_LAUNCHERS, OPTIONS
from ronde.cli.launcher_words import Reading, read_words
from ronde.errors import UsageError
from ronde.plan import expand

HERE = os.path.dirname(sys.executable)


@pytest.fixture(scope="module")
def own() -> dict[str, dict[str, bool]]:
    """The options that `ronde run` and `ronde verify` have, and whether each takes a value."""
    found: dict[str, dict[str, bool]] = {}
    for name in ("run", "verify"):
        command: Any = typer.main.get_command(app._application(asked_for=name))
        found[name] = app._options_of(command.commands[name])
    return found


def read(line: str, own: dict[str, dict[str, bool]], command: str = "run") -> Reading:
    return read_words(
        shlex.split(line), own[command], command=command, is_file=lambda word: word.endswith(".py")
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        # as ronde has it: nothing changes
        ("train.py --lr 0.1", "train.py --lr 0.1"),
        ("--ranks 2 train.py -n 4 --nnodes 2 -- x", "--ranks 2 train.py -n 4 --nnodes 2 -- x"),
        ("-qm json.tool --indent 2", "-qm json.tool --indent 2"),
        ("--ranks=2 -q -H a:1 train.py", "--ranks 2 -q -H a:1 train.py"),
        ("--run_dir d train.py", "--run-dir d train.py"),
        ("-m pkg.main -n 3", "-m pkg.main -n 3"),
        # the interpreter before the script
        ("python train.py --lr 0.1", "train.py --lr 0.1"),
        ("python3 -u train.py", "train.py"),
        ("python3.12 train.py", "train.py"),
        ("--ranks 2 -- python train.py", "--ranks 2 train.py"),
        ("--ranks 2 python -m pkg.train a", "--ranks 2 -m pkg.train a"),
        (f"{HERE}/python train.py", "train.py"),
        # a number of ranks
        ("-n 4 train.py", "--ranks 4 train.py"),
        ("-n4 train.py", "--ranks 4 train.py"),
        ("-np 4 python train.py", "--ranks 4 train.py"),
        ("-np4 train.py", "--ranks 4 train.py"),
        ("--np 4 train.py", "--ranks 4 train.py"),
        ("--num-proc 4 train.py", "--ranks 4 train.py"),
        ("--ranks 4 -n 4 train.py", "--ranks 4 train.py"),
        # torchrun
        ("--nproc_per_node=4 train.py --lr 0.1", "--ranks 4 train.py --lr 0.1"),
        ("--nproc-per-node 4 --standalone train.py", "--ranks 4 train.py"),
        ("--nproc_per_node=gpu train.py", "--ranks auto train.py"),
        (
            "--nproc_per_node=2 --nnodes=1 --node_rank=0 --master_addr=localhost --master_port=1 train.py",
            "--ranks 2 train.py",
        ),
        ("--nnodes 1:1 --rdzv-backend c10d --rdzv-endpoint localhost:0 --nproc-per-node 2 -m a.b", "--ranks 2 -m a.b"),
        ("--max_restarts 3 --checkpoint d train.py", "--restarts 3 --checkpoint d train.py"),
        ("--log_dir logs --nproc_per_node 2 train.py", "--run-dir logs --ranks 2 train.py"),
        ("torchrun --nproc-per-node 2 train.py -n 1", "--ranks 2 train.py -n 1"),
        ("python -m torch.distributed.run --nproc_per_node 2 train.py", "--ranks 2 train.py"),
        ("-m torch.distributed.launch --nproc_per_node 2 --use_env train.py", "--ranks 2 train.py"),
        # accelerate
        ("--multi_gpu --num_processes 4 train.py", "--ranks 4 train.py"),
        (
            "--multi_gpu --num_processes 4 --mixed_precision bf16 train.py",
            "--plan precision=bf16 --ranks 4 train.py",
        ),
        ("launch --num_processes 2 --num_machines 1 --machine_rank 0 train.py", "--ranks 2 train.py"),
        ("accelerate launch --num_processes 2 --mixed_precision no train.py", "--ranks 2 train.py"),
        ("launch --mixed_precision=fp16 --dynamo_backend=no train.py", "--plan precision=fp16 train.py"),
        ("--use_deepspeed --num_processes 2 train.py", "--plan zero2 --ranks 2 train.py"),
        ("--zero_stage 3 --use_deepspeed train.py", "--plan zero3 train.py"),
        (
            "--use_deepspeed --zero_stage 3 --offload_optimizer_device cpu --offload_param_device cpu train.py",
            "--plan zero3,offload=all train.py",
        ),
        ("--use_fsdp --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP train.py", "--plan zero3 train.py"),
        ("--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP train.py", "--plan zero2 train.py"),
        ("--fsdp_sharding_strategy 1 --use_fsdp --mixed_precision bf16 train.py", "--plan zero3,precision=bf16 train.py"),
        ("--use_megatron_lm --megatron_lm_tp_degree 2 --num_processes 4 train.py", "--plan tensor=2 --ranks 4 train.py"),
        ("--plan zero1 --mixed_precision bf16 train.py", "--plan zero1,precision=bf16 train.py"),
        ("--num_cpu_threads_per_process 2 train.py", "--threads 2 train.py"),
        # deepspeed: what stands behind the script is the script's
        ("--num_gpus=4 train.py --deepspeed ds_config.json", "--ranks 4 train.py --deepspeed ds_config.json"),
        ("deepspeed --num_nodes 1 --num_gpus -1 train.py", "--ranks auto train.py"),
        ("--hostfile hosts train.py --deepspeed_config c.json", "--hostfile hosts train.py --deepspeed_config c.json"),
        # lightning, paddle
        ("fabric run --accelerator=cuda --devices=2 --strategy=ddp train.py", "--plan ddp --ranks 2 train.py"),
        ("--devices 2 --strategy deepspeed_stage_2 --precision bf16-mixed train.py",
         "--plan deepspeed_stage_2,precision=bf16 --ranks 2 train.py"),
        ("-m paddle.distributed.launch --nproc_per_node 2 train.py", "--ranks 2 train.py"),
        # mpirun, horovodrun, srun
        (
            "-np 4 -H a:2,b:2 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x PATH -mca pml ob1 python train.py",
            "-H a:2,b:2 --env NCCL_DEBUG=INFO --env PATH --ranks 4 train.py",
        ),
        ("mpirun --allow-run-as-root -np 2 python train.py", "--ranks 2 train.py"),
        ("srun -N 1 -n 2 python train.py", "--ranks 2 train.py"),
        ("srun -N1 -n2 -c8 -t 10 -J job -A me python train.py", "--ranks 2 train.py"),
        ("srun -n 4 --gpus 4 --mpi=pmix -l python train.py", "--ranks 4 train.py"),
        ("mpirun -c 2 -x PATH -H a:2 train.py", "--env PATH -H a:2 --ranks 2 train.py"),
        ("mpirun -N 2 train.py", "--ranks 2 train.py"),
        ("deepspeed -H hosts train.py", "--hostfile hosts train.py"),
        ("-p 22 -H a:2 train.py", "--ssh-port 22 -H a:2 train.py"),
        ("--max_restarts 0 --nproc_per_node 2 train.py", "--ranks 2 train.py"),
        ("torchrun --help", "--help"),
        # what the parser answers
        ("--lr 3 train.py", "--lr 3 train.py"),
        ("-n 2 --lr 3 train.py", "--ranks 2 --lr 3 train.py"),
        ("launch.py", "launch.py"),
        ("-", "-"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_line_is_read(typed: str, meant: str, own: dict[str, dict[str, bool]]) -> None:
    assert shlex.join(read(typed, own).words) == meant


def test_what_has_no_counterpart_is_said(own: dict[str, dict[str, bool]]) -> None:
    reading = read("--nproc_per_node=2 --standalone --master_port 29501 train.py", own)
    assert reading.left_out == ("--standalone", "--master_port 29501")
    assert reading.changed
    assert not read("--ranks 2 python -u train.py", own).changed


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        (
            "--nproc_per_node=4 --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 train.py --lr 0.1",
            "ronde run -H 10.0.0.1:4,HOST1:4 train.py --lr 0.1; or on each by torchrun: torchrun --nnodes 2 "
            "--nproc-per-node 4 --node-rank 0 --master-addr 10.0.0.1 -m ronde run train.py --lr 0.1",
        ),
        (
            "--num_processes 8 --num_machines 2 --machine_rank 1 --main_process_ip 10.0.0.1 --mixed_precision bf16 -m a",
            "ronde run -H 10.0.0.1:4,HOST1:4 --plan precision=bf16 -m a; or on each by torchrun: torchrun "
            "--nnodes 2 --nproc-per-node 4 --node-rank 1 --master-addr 10.0.0.1 -m ronde run --plan "
            "precision=bf16 -m a",
        ),
        ("--nnodes=1:4 --nproc-per-node 2 train.py", "--min-ranks 2 --checkpoint DIR train.py"),
        ("--nnodes=2 --nproc-per-node auto train.py", "ronde run -H HOST0:N,HOST1:N train.py"),
        ("--nnodes=two train.py", "two is not a number of hosts; try -H HOST1:2,HOST2:2"),
        ("--hostfile h --num_nodes 2 train.py", "--hostfile names the hosts, and their number is given too"),
        ("--hostfile h --num_gpus 2 train.py", "--num_gpus 2 counts the ranks of each host, which --hostfile does"),
        ("--ranks 2 -n 4 train.py", "--ranks 2 and -n 4 give two numbers of ranks; keep one"),
        ("-n 2 --np 4 train.py", "-n 2 and --np 4 give two numbers of ranks; keep one"),
        ("-n two train.py", "-n two is not a number of ranks; try --ranks 2"),
        ("-n", "-n needs a value after it"),
        ("--nproc_per_node cpu train.py", "--nproc_per_node cpu is not a number of ranks"),
        ("--gpu_ids 0,1 train.py", "write CUDA_VISIBLE_DEVICES=0,1 before ronde"),
        ("--include localhost:1,2 train.py", "write CUDA_VISIBLE_DEVICES=1,2 before ronde"),
        ("--devices 2,3 train.py", "write CUDA_VISIBLE_DEVICES=2,3 before ronde"),
        ("--mixed_precision fp8 train.py", "--mixed_precision fp8 is not available; choose among no, 32,"),
        ("--config_file a.yaml train.py", "--config_file a.yaml: ronde reads no configuration of another launcher"),
        ("--deepspeed ds.json train.py", "its ZeRO stage is --plan zero1, zero2 or zero3"),
        ("--no_python train.py", "ronde runs python scripts"),
        ("--tee 3 train.py", "the output of every rank is in the run directory, as rank-N.log; leave it out"),
        ("--gradient_accumulation_steps 4 train.py", "this is decided in the script"),
        ("srun -n 2 -p gpu python train.py", "-p gpu: nodes are chosen where Slurm allocates them"),
        ("srun -x node1 train.py", "-x node1: nodes are chosen where Slurm allocates them"),
        ("srun -w node1 train.py", "-w node1: nodes are chosen where Slurm allocates them"),
        ("srun -N 2 -n 4 train.py", "ronde run -H HOST0:2,HOST1:2 train.py"),
        ("torchrun -t 3 train.py", "the output of every rank is in the run directory"),
        ("--max_restarts 3 --nproc_per_node 2 train.py", "--max_restarts 3 is --restarts 3 --checkpoint DIR here"),
        ("torchrun", "a script is missing after torchrun; write ronde run train.py"),
        ("torchrun --nproc-per-node 2", "a script is missing after torchrun"),
        ("accelerate launch", "a script is missing after accelerate launch"),
        ("accelerate", "a script is missing after accelerate launch"),
        ("launch", "a script is missing after launch"),
        ("deepspeed --num_gpus 2", "a script is missing after deepspeed"),
        ("python", "a script is missing after python"),
        ("mpirun -np 2 python", "a script is missing after python"),
        ("python -m", "a script is missing after python"),
        ("--cpu train.py", "write CUDA_VISIBLE_DEVICES= before ronde"),
        ("horovodrun -np 2 python train.py", "write ronde horovodrun -np 2 python train.py"),
        ("CUDA_VISIBLE_DEVICES=0 python train.py", "write it first: CUDA_VISIBLE_DEVICES=0 ronde run ..."),
        ("python -c 'print(1)'", "python -c has no script that every rank could read; save it to a file"),
        ("python -O train.py", "set it for every rank by PYTHONOPTIMIZE=1 before ronde"),
        ("python -W ignore train.py", "set it for every rank by PYTHONWARNINGS=ignore before ronde"),
        ("python -i train.py", "-i is an option of python that ranks do not support; leave it out"),
        ("/opt/other/bin/python train.py", "/opt/other/bin/python is another interpreter than ronde's"),
    ],
)  # fmt: skip
def test_a_line_is_answered(typed: str, advice: str, own: dict[str, dict[str, bool]]) -> None:
    with pytest.raises(UsageError) as caught:
        read(typed, own)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("python train.py", "train.py"),
        ("--nproc_per_node=3 train.py", "--ranks 3 train.py"),
        ("--precision as-is train.py", "--precision as-is train.py"),
    ],
)
def test_verify_reads_them_too(typed: str, meant: str, own: dict[str, dict[str, bool]]) -> None:
    assert shlex.join(read(typed, own, "verify").words) == meant


def test_verify_has_no_hosts(own: dict[str, dict[str, bool]]) -> None:
    with pytest.raises(UsageError, match="-x is --env of ronde run, and ronde verify has none; leave it out"):
        read("-x PATH train.py", own, "verify")


def test_no_option_of_ronde_is_taken_for_another(own: dict[str, dict[str, bool]]) -> None:
    assert not own["run"].keys() & OPTIONS.keys()


def test_a_launchers_letters_are_its_own(own: dict[str, dict[str, bool]]) -> None:
    assert read("torchrun -x PATH train.py", own).words == ("-x", "PATH", "train.py")  # the parser refuses it
    assert OF_LAUNCHERS["srun"]["-x"] is not OF_LAUNCHERS["mpirun"]["-x"]


def test_every_item_is_one_of_a_plan(own: dict[str, dict[str, bool]]) -> None:
    for line in ("--use-fsdp", "--zero-stage 1", "--dynamo-backend inductor", "--tp 2", "--pp 2", "--bf16",
                 "--fsdp-offload-params true --use-fsdp", "--fsdp-activation-checkpointing true"):  # fmt: skip
        words = read(f"{line} train.py", own).words
        expand(words[words.index("--plan") + 1])
