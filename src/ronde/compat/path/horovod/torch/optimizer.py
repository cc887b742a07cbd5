from ronde.compat.horovod.optimizer import DistributedOptimizer
