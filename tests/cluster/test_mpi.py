"""The environments of Open MPI, MPICH and Intel MPI."""

from __future__ import annotations

import pytest

from ronde.cluster.mpi import process_of_mpi
from ronde.errors import UsageError

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "106299393",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def test_open_mpi_on_several_hosts() -> None:
    place = process_of_mpi(OPEN_MPI, 7)
    assert place is not None
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (3, 4, 1, 2)
    assert place.launcher == "mpirun of Open MPI"
    assert place.master_address == ""  # looked for in the run directory
    in_slurm = process_of_mpi({**OPEN_MPI, "SLURM_JOB_NODELIST": "n[4-5]"}, 7)
    assert in_slurm is not None
    assert in_slurm.master_address == "n4"


@pytest.mark.parametrize(
    ("more", "name"), [({}, "mpirun of MPICH"), ({"I_MPI_FABRICS": "shm"}, "mpirun of Intel MPI")]
)
def test_mpich_and_intel(more: dict[str, str], name: str) -> None:
    place = process_of_mpi({**MPICH, **more}, 7)
    assert place is not None
    assert (place.rank, place.world_size, place.master_address) == (1, 2, "127.0.0.1")
    assert place.launcher == name
    other = process_of_mpi({**MPICH, **more}, 8)
    assert other is not None
    assert other.master_port != place.master_port


def test_intel_mpi_has_a_word_for_a_job_on_several_hosts() -> None:
    place = process_of_mpi({**MPICH, "PMI_SIZE": "4", "I_MPI_HYDRA_UUID": "b852-86"}, 7)
    assert place is not None
    assert (place.master_address, place.run_id) == ("", "mpi-I_MPI_HYDRA_UUID b852-86")


def test_alone_or_not_at_all() -> None:
    assert process_of_mpi({}, 7) is None
    assert process_of_mpi({**MPICH, "PMI_SIZE": "1", "MPI_LOCALNRANKS": "1"}, 7) is None
    # srun --mpi=pmi2 sets these two, and is Slurm's business.
    assert process_of_mpi({"PMI_RANK": "0", "PMI_SIZE": "2"}, 7) is None


def test_refused() -> None:
    with pytest.raises(UsageError, match=r"MPICH does not tell .*mpirun -genv MASTER_ADDR 10\.0\.0\.5"):
        process_of_mpi({**MPICH, "PMI_SIZE": "4"}, 7)
    with pytest.raises(UsageError, match="MPI_LOCALRANKID is not set, but others of mpirun are"):
        process_of_mpi({name: value for name, value in MPICH.items() if name != "MPI_LOCALRANKID"}, 7)
    with pytest.raises(UsageError, match="MASTER_PORT=x is not a port"):
        process_of_mpi({**MPICH, "MASTER_PORT": "x"}, 7)
