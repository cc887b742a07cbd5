from ronde.compat.byteps.cross_barrier import CrossBarrier
