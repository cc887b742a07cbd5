from ronde.compat.horovod.functions import dumps_base64, loads_base64
