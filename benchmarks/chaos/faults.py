"""The table of cases. Every fault is a real one: nothing is raised in the words of what it stands for."""

from __future__ import annotations

from typing import Any

from benchmarks.chaos.case import Case, at_third

__all__ = ["CASES"]

_WORKERS = "LOADER = dict(num_workers=1)\n"
_SLOW_SET = """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 24 * STEPS
    def __getitem__(self, index):
        {each}
        return (torch.randn(16),)

def make_data():
    return Slow()
"""


def _in_worker(code: str) -> str:
    """Code in the culprit's loader worker, at the fourth batch."""
    body = "\n".join(f"            {line}" for line in code.strip().splitlines())
    return (
        _WORKERS
        + f"""
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 24 * STEPS
    def __getitem__(self, index):
        if index >= 24 * 3 and RANK == CULPRIT:
            mark()
{body}
        return (torch.randn(16),)

def make_data():
    return Samples()
"""
    )


def _fails(name: str, cause: str, code: str, **more: Any) -> Case:
    """Run code on the culprit at a third of the run, which ends it."""
    return Case(name=name, causes=(cause,), fault=at_third(code), **more)


def _stalls(name: str, cause: str, code: str, **more: Any) -> Case:
    """Run code on the culprit after a third of the run."""
    return _fails(name, cause, code, outcome="stalls", **more)


CASES = (
    # A process ends.
    _fails("kill -9", "killed", "os.kill(os.getpid(), 9)"),
    _fails("kill -9 of rank 0", "killed", "os.kill(os.getpid(), 9)", rank=0, culprit=0),
    _fails("segfault", "crashed", "import ctypes\nctypes.string_at(0)"),
    _fails("abort", "aborted", "os.abort()"),
    _fails(
        "bus error",
        "shared-memory",
        """
        import mmap
        handle = os.memfd_create("short")
        os.ftruncate(handle, 8192)
        memory = mmap.mmap(handle, 8192)
        os.ftruncate(handle, 0)
        memory[5000]
        """,
    ),
    _fails("SIGTERM from outside", "signalled", "os.kill(os.getpid(), 15)\ntime.sleep(9)"),
    _fails("sys.exit(3)", "exited", "sys.exit(3)"),
    _fails("os._exit(3)", "exited", "os._exit(3)"),
    _fails("os._exit(0)", "ended-early", "os._exit(0)"),
    _fails(
        "processor time (ulimit -t)",
        "cpu-limit",
        """
        import resource, signal
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1, int(used) + 60))
        while True:
            pass
        """,
    ),
    # A rank raises.
    _fails("raise", "script-error", 'raise ValueError("bad label 11")'),
    _fails("module missing", "module-missing", "import a_module_that_is_not_there"),
    _fails("endless recursion", "recursion", "def deeper():\n    deeper()\ndeeper()"),
    _fails(
        "memory limit (ulimit -v)",
        "host-memory",
        """
        import resource
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
        torch.zeros(256 << 20)
        """,
    ),
    _fails(
        "memory limit of a control group",
        "host-memory",
        """
        def put(file, words):
            handle = libc.open(f"{group}/{file}".encode(), os.O_WRONLY)
            libc.write(handle, words, len(words))
            libc.close(handle)
        group = f"/sys/fs/cgroup/memory/{HERE.rpartition('/')[2]}"
        libc.mkdir(group.encode(), 0o755)
        put("memory.limit_in_bytes", b"67108864")
        put("cgroup.procs", str(os.getpid()).encode())
        kept = torch.ones(1 << 28)
        """,
        needs="/sys/fs/cgroup/memory/cgroup.procs",
    ),
    _fails(
        "too many open files",
        "too-many-files",
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        kept = [open("/dev/null") for _ in range(300)]
        """,
    ),
    _fails(
        "threads without an end",
        "too-many-processes",
        """
        import resource, threading
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
        for _ in range(200):
            threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
        """,
    ),
    _fails(
        "disk full",
        "disk-full",
        """
        with os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb") as stream:
            stream.write(bytes(1 << 20))
        """,
        culprit=0,
        rank=0,
    ),
    Case(
        name="file too large (ulimit -f)",
        causes=("file-limit",),
        rank=-1,
        fault="""
        def at_step(step, out):
            if step == 3:
                import resource
                resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
                mark()
                with open(f"{HERE}/large", "wb") as stream:
                    stream.write(bytes(4 << 20))
        """,
    ),
    Case(
        name="truncated checkpoint",
        causes=("checkpoint-truncated",),
        rank=-1,
        fault="""
        def at_step(step, out):
            if step == 3:
                if RANK == 0:
                    mark()
                torch.save(model.state_dict(), f"{HERE}/model.pt")
                os.truncate(f"{HERE}/model.pt", 1000)
                torch.load(f"{HERE}/model.pt")
        """,
    ),
    _fails(
        "port taken",
        "port-taken",
        """
        import socket
        one, two = socket.socket(), socket.socket()
        one.bind(("127.0.0.1", 0))
        one.listen()
        two.bind(one.getsockname())
        """,
    ),
    Case(
        name="loader worker killed",
        causes=("loader-worker-killed",),
        fault=_in_worker("os.kill(os.getpid(), 9)"),
    ),
    # Ranks take different paths.
    Case(
        name="wrong shape on one rank",
        causes=("shapes-differ",),
        ranks=3,
        fault="""
        def at_step(step, out):
            if step == 3:
                if RANK == CULPRIT:
                    mark()
                out[:, : 2 + (RANK == CULPRIT)].tolist()
        """,
    ),
    _fails("extra collective on one rank", "paths-differ", "out.tolist()", ranks=3),
    Case(
        name="branch that depends on the rank",
        causes=("paths-differ",),
        ranks=3,
        fault="""
        def at_step(step, out):
            if step == 3:
                if RANK == CULPRIT:
                    mark()
                    print(out.std(dim=0).tolist())
                else:
                    print(out.tolist())
        """,
    ),
    Case(
        name="uneven data",
        causes=("ended-early", "paths-differ"),
        ranks=3,
        fault=at_third('return "break"'),
    ),
    # Ranks wait.
    _stalls("SIGSTOP", "stopped", "os.kill(os.getpid(), 19)"),
    _stalls("sleep", "sleeps", "time.sleep(60)"),
    # No sleep of C's: the signal that asks for stacks would end it.
    _stalls(
        "GIL held asleep",
        "interpreter-held",
        """
        library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)
        """,
    ),
    _stalls("GIL held computing", "interpreter-held", 'import re\nre.match(r"(a+)+$", "a" * 60 + "b")'),
    _stalls("infinite loop in Python", "computes", "while True:\n    pass"),
    _stalls(
        "deadlocked lock", "lock", "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()"
    ),
    _stalls("empty queue", "lock", "import queue\nqueue.Queue().get()"),
    _stalls(
        "thread that never ends",
        "lock",
        """
        import threading
        thread = threading.Thread(target=threading.Event().wait, daemon=True)
        thread.start()
        thread.join()
        """,
    ),
    _stalls(
        "socket without an answer",
        "waits-outside",
        "import socket\none, two = socket.socketpair()\none.recv(1)",
    ),
    _stalls(
        "child that never ends",
        "waits-outside",
        "pid = os.posix_spawn('/bin/sleep', ['sleep', '60'], os.environ)\nos.waitpid(pid, 0)",
    ),
    _stalls(
        "file locked by another",
        "waits-outside",
        """
        import fcntl
        one, two = (libc.open(f"{HERE}/locked".encode(), os.O_RDWR | os.O_CREAT, 0o644) for _ in range(2))
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(two, fcntl.LOCK_EX)
        """,
    ),
    # The parent of a spawn cannot be interrupted until the child has begun its program, which waits.
    _stalls(
        "uninterruptible (state D)",
        "uninterruptible",
        """
        libc.mkfifo(f"{HERE}/fifo".encode(), 0o644)
        opened = (os.POSIX_SPAWN_OPEN, 5, f"{HERE}/fifo", os.O_RDONLY, 0)
        os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[opened])
        """,
    ),
    Case(
        name="frozen loader worker",
        causes=("loader-stopped",),
        outcome="stalls",
        fault=_in_worker("os.kill(os.getpid(), 19)"),
    ),
    Case(
        name="deadlocked loader worker",
        causes=("loader-frozen",),
        outcome="stalls",
        fault=_in_worker("import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()"),
    ),
    # It goes on, slowly or wrongly.
    Case(
        name="NaN on one rank",
        causes=("not-finite",),
        outcome="ends",
        steps=40,
        fault="""
        class Spoilt(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(16, 4)
                self.calls = 0

            def forward(self, x):
                self.calls += 1
                out = self.inner(x)
                return out * float("nan") if RANK == CULPRIT and self.calls > 6 else out

        def make_model():
            return Spoilt()
        """,
    ),
    Case(
        name="straggler",
        causes=("straggler",),
        outcome="ends",
        steps=40,
        fault="""
        def at_step(step, out):
            if RANK == CULPRIT:
                time.sleep(0.2)
        """,
    ),
    Case(
        name="slow loader",
        causes=("slow-loader",),
        outcome="ends",
        rank=None,
        steps=20,
        fault=_SLOW_SET.format(each="time.sleep(0.02)"),
    ),
    Case(
        name="oversubscribed threads",
        causes=("oversubscribed",),
        outcome="ends",
        rank=None,
        options=("--threads", "64"),
    ),
    # Servers.
    Case(
        name="server killed with nothing kept",
        causes=("server-lost",),
        rank=None,
        options=("--plan", "ps", "--servers", "1", "--durability", "none"),
        fault="""
        def at_step(step, out):
            if step == 3 and RANK == 0:
                mark()
                for name in os.listdir("/proc"):
                    if name.isdigit():
                        try:
                            words = open(f"/proc/{name}/cmdline").read()
                            mine = os.environ["RONDE_RUN_ID"] in open(f"/proc/{name}/environ").read()
                        except OSError:
                            continue
                        if mine and "ronde.server.process" in words:
                            os.kill(int(name), 9)
        """,
    ),
    # Before a run.
    Case(
        name="tiny /dev/shm",
        causes=("shared-memory",),
        rank=None,
        outcome="preflight",
        before="mount -t tmpfs -o size=16m none /dev/shm",
    ),
    Case(
        name="loopback hostname",
        options=("--hosts", "2"),
        causes=("host-name",),
        rank=None,
        outcome="preflight",
        before='printf "127.0.0.1 localhost\\n127.0.1.1 $(hostname)\\n" > "$CHAOS_HERE/hosts"; '
        'mount --bind "$CHAOS_HERE/hosts" /etc/hosts',
    ),
    Case(
        name="few open files allowed",
        causes=("open-files",),
        rank=None,
        outcome="preflight",
        before="ulimit -n 128",
    ),
    Case(
        name="OMP_NUM_THREADS above the cores",
        causes=("threads",),
        rank=None,
        outcome="preflight",
        environment=(("OMP_NUM_THREADS", "64"),),
    ),
    Case(
        name="disk nearly full",
        causes=("disk",),
        rank=None,
        outcome="preflight",
        before='mkdir "$CHAOS_HERE/small"; mount -t tmpfs -o size=8m none "$CHAOS_HERE/small"',
        environment=(("XDG_STATE_HOME", "{here}/small"),),
    ),
)
