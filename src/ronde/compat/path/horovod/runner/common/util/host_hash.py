from ronde.compat.horovod.host_slots import host_hash
