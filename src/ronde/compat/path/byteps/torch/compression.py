from ronde.compat.horovod.compression import Compression
