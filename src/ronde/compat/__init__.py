"""Interfaces of other libraries for their scripts: Horovod's and BytePS's.

Such a script shards its data and scales its learning rate itself, so ronde's boundary is inactive in it.
"""
