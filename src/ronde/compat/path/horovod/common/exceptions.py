from ronde.compat.engine import HorovodInternalError
from ronde.compat.horovod.elastic import HostsUpdatedInterrupt
from ronde.compat.horovod.util import HorovodVersionMismatchError
