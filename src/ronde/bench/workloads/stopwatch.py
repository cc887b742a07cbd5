"""Times a training loop behind its warm-up, and prints what it read as one line."""

import argparse
import json
import time

import torch


class Stopwatch:
    """Call `step()` behind each optimizer step; the clock starts when the warm-up is over."""

    def __init__(self, warm_up):
        self.warm_up = warm_up
        self.steps = -warm_up
        self.start = self.stop = time.perf_counter()

    def step(self):
        self.steps += 1
        self.stop = time.perf_counter()
        if self.steps == 0:
            self.start = self.stop

    def report(self, workload, batch_size, loss):
        """`loss` is the mean over the last global batch, by which runs prove that they trained alike."""
        seconds = self.stop - self.start
        line = {
            "workload": workload,
            "samples_per_second": self.steps * batch_size / seconds,
            "steps": self.steps,
            "seconds": seconds,
            "loss": loss,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        print("bench-line " + json.dumps(line), flush=True)


def arguments(steps, warm_up):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=steps, help="timed steps")
    parser.add_argument("--warm-up", type=int, default=warm_up, help="steps before the clock starts")
    return parser.parse_args()
