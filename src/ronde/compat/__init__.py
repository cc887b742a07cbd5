"""Other libraries' interfaces, for scripts that are written for them: Horovod's and BytePS's.

Such a script shards its data and scales its learning rate itself, so nothing of the boundary is active in it.
"""
