from ronde.compat.horovod.elastic import TorchState
