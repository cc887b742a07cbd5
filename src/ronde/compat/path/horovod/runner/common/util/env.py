from ronde.compat.horovod.util import get_env_rank_and_size
