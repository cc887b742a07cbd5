"""Modules of Horovod that are independent of a framework."""
