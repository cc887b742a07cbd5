"""Names that scripts import from Horovod's other modules: they work, or are refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ronde.compat
from ronde.compat.horovod import host_slots, util
from ronde.compat.horovod.running import run

ON_PATH = Path(ronde.compat.__file__).parent / "path"

# Of `horovod.torch`.
NAMES = """
init shutdown is_initialized size rank local_size local_rank cross_size cross_rank
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built
cuda_built rocm_built start_timeline stop_timeline Average Sum Adasum Min Max Product ProcessSet
global_process_set add_process_set remove_process_set allreduce allreduce_async allreduce_
allreduce_async_ grouped_allreduce grouped_allreduce_async grouped_allreduce_
grouped_allreduce_async_ sparse_allreduce_async allgather allgather_async grouped_allgather
grouped_allgather_async broadcast broadcast_async broadcast_ broadcast_async_ alltoall
alltoall_async reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async
poll synchronize join barrier broadcast_parameters broadcast_optimizer_state broadcast_object
allgather_object Compression DistributedOptimizer SyncBatchNorm HorovodInternalError elastic
""".split()
# Each line is tried in one process: what it imports is there.
IMPORTS = """
from horovod.common.util import EXTENSIONS, ccl_built, check_extension, check_installed_version, ddl_built
from horovod.common.util import env, extension_available, get_average_backwards_compatibility_fun, gloo_built
from horovod.common.util import gpu_available, is_iterable, is_version_greater_equal_than, mpi_built
from horovod.common.util import nccl_built, num_rank_is_power_2, split_list
from horovod.common.exceptions import HorovodInternalError, HorovodVersionMismatchError
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.common.elastic import ObjectState, State
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.runner import run; import horovod; assert horovod.run is run
from horovod.runner.common.util.hosts import SlotInfo, get_host_assignments, parse_hosts
from horovod.runner.common.util.env import get_env_rank_and_size
from horovod.runner.common.util.host_hash import host_hash
from horovod.runner.common.util import codec; assert codec.loads_base64(codec.dumps_base64([1])) == [1]
"""
REFUSED = {
    "import horovod.keras": "horovod.keras: ronde has the PyTorch interface only, horovod.torch",
    "import horovod.tensorflow.keras": "horovod.tensorflow: ronde has the PyTorch interface only",
    "from horovod.spark import run": "horovod.spark: ronde has the PyTorch interface only",
    "from horovod.runner.gloo_run import launch_gloo": "horovod.runner.gloo_run: ronde starts ranks by",
    "from horovod.runner.common.util import secret": "horovod.runner.common.util.secret: ronde starts",
    "from horovod.torch import mpi_lib_v2": "horovod.torch.mpi_lib_v2 is not in this version of ronde",
    "from horovod.common.util import get_ext_suffix": "get_ext_suffix: ronde has no compiled extension",
}


def python(code: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join((str(ON_PATH), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_names_are_there_or_refused_with_the_fix() -> None:
    tried = "\n".join(
        f"try: exec({line!r})\nexcept ImportError as error: print(error)\nelse: print('imported')"
        for line in REFUSED
    )
    done = python(f"{IMPORTS}\n{tried}\nimport horovod.torch; print(*dir(horovod.torch))")
    assert done.returncode == 0, done.stderr
    *said, names = done.stdout.splitlines()
    for each, expected in zip(said, REFUSED.values(), strict=True):
        assert expected in each
    assert len(NAMES) == 67
    assert set(NAMES) - set(names.split()) == set()


def test_what_is_built_in() -> None:
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match=r"horovod\.mxnet: ronde has the PyTorch interface only"):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")
    assert [each for each in util.EXTENSIONS if util.extension_available(each)] == ["torch"]
    assert (util.gloo_built(verbose=True), util.mpi_built(verbose=True)) == (True, False)
    assert not util.gpu_available("tensorflow")
    util.check_installed_version("torch", "1.0")


def test_small_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [number for number in range(10) if util.num_rank_is_power_2(number)] == [1, 2, 4, 8]
    assert util.split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
    assert util.is_version_greater_equal_than("2.13.0+cpu", "1.10.0")
    assert not util.is_version_greater_equal_than("1.9.0", "1.10.0")
    with pytest.raises(ValueError, match=r"as major\.minor\.patch"):
        util.is_version_greater_equal_than("1.9.0", "1.10")
    operation = util.get_average_backwards_compatibility_fun(None)
    assert (operation(None, None), operation(None, False), operation(4, None)) == (0, 1, 4)
    monkeypatch.setenv("HOROVOD_RANK", "3")
    monkeypatch.delenv("HOROVOD_SIZE", raising=False)
    with util.env(HOROVOD_SIZE="4", HOROVOD_RANK=None):
        assert util.get_env_rank_and_size() == (3, 4)
    assert util.get_env_rank_and_size() == (3, 1)


def test_ranks_are_given_to_hosts(tmp_path: Path) -> None:
    hosts = host_slots.parse_hosts("a:2,b:1,c:4")
    found = host_slots.get_host_assignments(hosts, 4, 5)
    assert [each.to_response_string() for each in found] == [
        "0,5,0,2,0,3", "1,5,1,2,0,2", "2,5,0,1,1,3", "3,5,0,2,2,3", "4,5,1,2,1,2",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="7 slots are fewer than 8 ranks"):
        host_slots.get_host_assignments(hosts, 8)
    assert host_slots.parse_hosts_and_slots("a:2,b:1") == (["a", "b"], {"a": 2, "b": 1})
    (tmp_path / "hosts").write_text("a slots=2\nb slots=1\n")
    assert host_slots.parse_host_files(str(tmp_path / "hosts")) == "a:2,b:1"
    with pytest.raises(ValueError, match="is not a host with a number of ranks"):
        host_slots.HostInfo.from_string("a:x")
    assert host_slots.host_hash() == host_slots.host_hash() != host_slots.host_hash("salt")


def test_options_of_run_that_are_not_there() -> None:
    with pytest.raises(
        NotImplementedError, match=r"horovod\.run: min_num_proc, use_mpi is not in this version"
    ):
        run(print, min_num_proc=2, use_mpi=True, mpi_args=None)
    with pytest.raises(NotImplementedError, match=r"by ronde horovodrun -H a\.invalid:2"):
        run(print, np=2, hosts="a.invalid:2")


FUNCTION = """
import horovod
import horovod.torch as hvd
import torch

def train(scale, shift):
    hvd.init()
    if shift < 0:
        raise ArithmeticError("a bad shift")
    return hvd.rank(), hvd.allreduce(torch.tensor([scale * (hvd.rank() + 1.0)]), op=hvd.Sum) + shift

if __name__ == "__main__":
    assert horovod.run(train, args=(2,), kwargs={"shift": 1}, np=2, use_mpi=False) == [(0, 7.0), (1, 7.0)]
    try:
        horovod.run(train, args=(2, -1), num_proc=1)
    except RuntimeError as error:
        print(error)
"""


def test_a_function_runs_on_ranks(tmp_path: Path) -> None:
    """In one process of `ronde horovodrun`, as Horovod's example for MNIST does with --num-proc."""
    (tmp_path / "train.py").write_text(FUNCTION)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "ronde", "horovodrun", "-np", "1", sys.executable, "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "horovod.run: the ranks ended with exit code 1, see above" in done.stdout
    assert "ArithmeticError: a bad shift" in done.stderr
