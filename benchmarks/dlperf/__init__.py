"""DLPerf's comparison of frameworks on this machine: `python -m benchmarks.dlperf`."""
