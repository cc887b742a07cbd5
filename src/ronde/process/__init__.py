"""Process environment, made equal on all ranks: clock, seeds, signals, console, threads."""
