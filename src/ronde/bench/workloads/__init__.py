"""Training scripts: one for a single device, and its twin for each peer.

`plain.py WORKLOAD` is run by `ronde run` or by plain python, `with_PEER.py WORKLOAD` as torchrun would. The
loop is in `training.py`; model, optimizer and data of a workload are in a file of their own.
"""
