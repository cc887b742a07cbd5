"""A worker of MXNet's KVStore, which runs where MXNet is installed, and ronde is not.

It is told on stdin what to do, a line each: the number of floats and how often; and answers with seconds.
"""

import sys
import time

import mxnet  # pyright: ignore[reportMissingImports] - of another environment


def main() -> None:
    store = mxnet.kv.create("dist_sync")
    made = {}
    print("ready", flush=True)  # noqa: T201 - to whoever times it
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
        print(time.perf_counter() - begun, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
