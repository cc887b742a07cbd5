from ronde.compat.horovod.util import (
    EXTENSIONS,
    ccl_built,
    check_extension,
    check_installed_version,
    ddl_built,
    env,
    extension_available,
    get_average_backwards_compatibility_fun,
    gloo_built,
    gpu_available,
    is_iterable,
    is_version_greater_equal_than,
    mpi_built,
    nccl_built,
    num_rank_is_power_2,
    split_list,
)


def __getattr__(name):
    if name in ("get_ext_suffix", "get_extension_full_path"):
        raise ImportError(
            f"horovod.common.util.{name}: ronde has no compiled extension of Horovod's; ask "
            "extension_available('torch') [R723]"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r} [R383]")
