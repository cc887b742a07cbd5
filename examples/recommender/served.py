"""A run whose server is killed by SIGKILL in the midst of training, and its model asked as it is served."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import torch

RONDE = [sys.executable, "-m", "ronde"]
KILLED_AT = 150  # steps; there are about 350
ALLOWED = 1e-6


def killed_run(script, run_dir, environment):
    """What a script printed, and the step of the newest version when its server was killed."""
    shutil.rmtree(run_dir, ignore_errors=True)
    options = "--ranks 2 --servers 2 --plan hybrid --publish 1 --run-dir".split()
    command = [*RONDE, "run", *options, str(run_dir), *script]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        step = None
        while step is None and running.poll() is None:
            time.sleep(0.01)
            if newest_step(run_dir) >= KILLED_AT:
                os.kill(process_of(run_dir / "server-0.log", running.pid), signal.SIGKILL)
                step = newest_step(run_dir)
        out, said = running.communicate()
    if running.returncode:
        raise SystemExit(f"{out}{said}a run whose server was killed: exit code {running.returncode}")
    if "server 0 ended (signal SIGKILL) and was started again" not in said:
        raise SystemExit(
            f"{said}no server was killed: the run was over before step {KILLED_AT} was published"
        )
    return out, step


def newest_step(run_dir):
    """How far the training was when its newest version was published; 0 before the first."""
    versions = (run_dir / "published").glob("version-*.json")
    return max((json.loads(each.read_text())["step"] for each in versions), default=0)


def process_of(log, launcher):
    """The child of the launcher that writes this log."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return next(int(each) for each in children if Path(f"/proc/{each}/fd/2").samefile(log))


def asked(run_dir, held_out, name):
    """Print what `ronde serve` answers for samples beside what the model said, and return what is wrong."""
    sample = torch.load(held_out)
    body = {"inputs": {name: sample[name].tolist() for name in ("dense", "ids")}}
    command = [*RONDE, "serve", str(run_dir), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as serving:
        try:
            line = serving.stderr.readline()
            address = re.search(r"http://\S+", line)
            if address is None:
                raise SystemExit(line + serving.stderr.read())
            request = urllib.request.Request(f"{address[0]}/v1/predict", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=60) as answer:
                told = json.load(answer)
        finally:
            serving.terminate()
    pairs = list(zip(told["outputs"], sample["outputs"].tolist(), strict=True))
    apart = max(abs(served - own) for served, own in pairs)
    print(f"\n{name}, as `ronde serve` has it: version {told['version']}, difference {apart:.1e}")
    print("served         the model's own")
    print("\n".join(f"{answer:+.9f}   {own:+.9f}" for answer, own in pairs), flush=True)
    if apart > ALLOWED:
        return [f"{name}: an answer is {apart:.1e} away from the model's own; {ALLOWED:.0e} is allowed"]
    return []
