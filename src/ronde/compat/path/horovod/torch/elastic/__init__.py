"""`horovod.torch.elastic`."""

from ronde.compat.horovod.elastic import ElasticSampler, ObjectState, State, TorchState, run
