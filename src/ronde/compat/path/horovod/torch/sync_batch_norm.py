from ronde.compat.horovod.sync_batch_norm import SyncBatchNorm
