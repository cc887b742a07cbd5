from byteps.torch import *
from byteps.torch import push_pull_async_inplace, rank, size, synchronize
