"""Time the first call of a model and every step, and measure their memory."""

import dataclasses
import json
import time
from functools import partial
from pathlib import Path

import torch
from catalogue import CATALOGUE
from drawn import DrawnBatches
from gpt import GPT, GPT_SMALL
from swin import SWIN_T
from training import arguments


def process_bytes(name):
    """Return the memory of this process: `VmRSS`, or `VmHWM`, its most since `begin_anew`."""
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(name))
    return int(line.split()[1]) * 1024


def begin_anew():
    Path("/proc/self/clear_refs").write_text("5")


def main():
    CATALOGUE["swin-t"] = SWIN_T
    CATALOGUE["gpt-12"] = dataclasses.replace(GPT_SMALL, model=partial(GPT, layers=12), steps=15)
    args = arguments()
    workload = args.workload
    torch.manual_seed(0)
    data = workload.data(args.samples)
    before = process_bytes("VmRSS")
    model = workload.model()
    optimizer = workload.optimizer(model.parameters())
    first_call, seconds, peaks, loss = 0.0, [], [], torch.tensor(0.0)
    for step in range(args.total):
        if isinstance(data, DrawnBatches):
            inputs, targets = data.draw(args.batch_size)
        else:
            rows = slice(step * args.batch_size, (step + 1) * args.batch_size)
            inputs, targets = data[rows]
        begin_anew()
        start = time.perf_counter()
        outputs = model(inputs)
        first_call = first_call or time.perf_counter() - start
        loss = workload.loss(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        peaks.append(process_bytes("VmHWM") - before)
    line = {
        "workload": args.name,
        "batch_size": args.batch_size,
        "first_call": first_call,
        "seconds": seconds,
        "peaks": peaks,
        "loss": loss.item(),
    }
    print("bench-line " + json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
