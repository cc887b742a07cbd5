from ronde.compat.horovod.basics import ProcessSet, add_process_set, global_process_set, remove_process_set
