"""Training scripts as users write them: one for a single device, and its twin for each peer.

`plain.py WORKLOAD` is run by `ronde run` or by plain python, `with_PEER.py WORKLOAD` as torchrun would. What
a workload is (model, optimizer, data) stands in a file of its own. None imports ronde.
"""
