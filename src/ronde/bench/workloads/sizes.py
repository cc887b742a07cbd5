"""Prints what a formula of memory is made of: how many parameters there are, what the optimizer keeps."""

import argparse
import json

from catalogue import CATALOGUE
from units import largest_unit

# Numbers for each parameter that these optimizers keep.
SLOTS = {"AdamW": 2, "SGD": 1}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=CATALOGUE)
    workload = CATALOGUE[parser.parse_args().workload]
    model = workload.model()
    parameters = list(model.parameters())
    sizes = {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "largest_unit": largest_unit(model),
        "slots": SLOTS[workload.optimizer.func.__name__],
        "itemsize": parameters[0].itemsize,
    }
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
