from ronde.compat.horovod.basics import gloo_built, mpi_built, nccl_built


def is_iterable(x):
    try:
        iter(x)
    except TypeError:
        return False
    return True


def split_list(values, parts):
    """Lists of nearly equal length, one behind the other."""
    share, more = divmod(len(values), parts)
    starts = [place * share + min(place, more) for place in range(parts)]
    return [values[start : start + share + (place < more)] for place, start in enumerate(starts)]
