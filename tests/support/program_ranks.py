"""Programs on several ranks: with LOWKEY_TEST_RANKS=N, tests of the server start it with mpirun -n N.

A test sees rank 0 as the process: it sends signals to it, and measures it.
"""
import os
import time

RANKS = int(os.environ.get("LOWKEY_TEST_RANKS", "1"))
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_btl": "vader,self", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "OMPI_MCA_hwloc_base_binding_policy": "none"}


def command(program, *arguments):
    """The command line of the program, and of mpirun before it."""
    start = ["mpirun", "-q", "-n", str(RANKS)] if RANKS > 1 else []
    return [*start, program, *arguments]


def environment():
    return {**os.environ, **MPI} if RANKS > 1 else None


def _is_rank(pid, rank):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"OMPI_COMM_WORLD_RANK={rank}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def rank_pid(pid, rank, timeout=10.0):
    """The process id of a rank that mpirun, whose id is `pid`, has started; 0 if there is none.
    Without ranks `pid` itself."""
    if RANKS == 1:
        return pid
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        children = []
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                    children += file.read().split()
        except OSError:
            pass
        for child in children:
            if _is_rank(child, rank):
                return int(child)
        time.sleep(0.02)
    return 0


def exit_status(status):
    """The status of mpirun as that of a process: negative if a signal ended rank 0."""
    return 128 - status if RANKS > 1 and status is not None and status > 128 else status
