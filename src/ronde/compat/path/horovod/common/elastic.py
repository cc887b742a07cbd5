from ronde.compat.horovod.elastic import ObjectState, State
