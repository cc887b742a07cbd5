"""A worker of MXNet's KVStore, in an environment with MXNet and without ronde.

A request is a line on stdin with the number of floats and of repetitions; the answer has the seconds.
"""

import sys
import time

import mxnet  # pyright: ignore[reportMissingImports] - of another environment


def main() -> None:
    store = mxnet.kv.create("dist_sync")
    made = {}
    print("ready", flush=True)
    for line in sys.stdin:
        size, times = map(int, line.split())
        if size not in made:
            store.init(size, mxnet.nd.zeros(size))
            made[size] = mxnet.nd.ones(size), mxnet.nd.zeros(size)
        value, out = made[size]
        value.wait_to_read()
        begun = time.perf_counter()
        for _ in range(times):
            store.push(size, value)
            store.pull(size, out=out)
            out.wait_to_read()
        print(time.perf_counter() - begun, flush=True)


if __name__ == "__main__":
    main()
