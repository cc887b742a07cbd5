"""Training scripts as users write them, and their twins written by hand for DistributedDataParallel.

None imports ronde: they are run as scripts, `NAME.py` by `ronde run` or plain python,
`NAME_ddp.py` as torchrun would.
"""
