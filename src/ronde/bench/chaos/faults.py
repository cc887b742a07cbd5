"""The table of cases. Every fault is a real one: nothing is raised in the words of what it stands for."""

from __future__ import annotations

from ronde.bench.chaos.case import Case, at_third

__all__ = ["CASES", "DAILY"]

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
    """In the loader worker of the culprit, at the first row of the fourth batch."""
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


CASES = (
    # A process ends.
    Case(name="kill -9", causes=("killed",), fault=at_third("os.kill(os.getpid(), 9)")),
    Case(
        name="kill -9 of rank 0",
        causes=("killed",),
        rank=0,
        culprit=0,
        fault=at_third("os.kill(os.getpid(), 9)"),
    ),
    Case(name="segfault", causes=("crashed",), fault=at_third("import ctypes\nctypes.string_at(0)")),
    Case(name="abort", causes=("aborted",), fault=at_third("os.abort()")),
    Case(
        name="bus error",
        causes=("shared-memory",),
        fault=at_third(
            """
            import mmap
            handle = os.memfd_create("short")
            os.ftruncate(handle, 8192)
            memory = mmap.mmap(handle, 8192)
            os.ftruncate(handle, 0)
            memory[5000]
            """
        ),
    ),
    Case(
        name="SIGTERM from outside",
        causes=("signalled",),
        fault=at_third("os.kill(os.getpid(), 15)\ntime.sleep(9)"),
    ),
    Case(name="sys.exit(3)", causes=("exited",), fault=at_third("sys.exit(3)")),
    Case(name="os._exit(3)", causes=("exited",), fault=at_third("os._exit(3)")),
    Case(name="os._exit(0)", causes=("ended-early",), fault=at_third("os._exit(0)")),
    Case(
        name="processor time (ulimit -t)",
        causes=("cpu-limit",),
        fault=at_third(
            """
            import resource, signal
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
            resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1, int(used) + 60))
            while True:
                pass
            """
        ),
    ),
    # A rank raises.
    Case(name="raise", causes=("script-error",), fault=at_third('raise ValueError("bad label 11")')),
    Case(
        name="module missing", causes=("module-missing",), fault=at_third("import a_module_that_is_not_there")
    ),
    Case(
        name="endless recursion",
        causes=("recursion",),
        fault=at_third("def deeper():\n    deeper()\ndeeper()"),
    ),
    Case(
        name="memory limit (ulimit -v)",
        causes=("host-memory",),
        fault=at_third(
            """
            import resource
            size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
            torch.zeros(256 << 20)
            """
        ),
    ),
    Case(
        name="memory limit of a control group",
        causes=("host-memory",),
        needs="/sys/fs/cgroup/memory/cgroup.procs",
        fault=at_third(
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
            """
        ),
    ),
    Case(
        name="too many open files",
        causes=("too-many-files",),
        fault=at_third(
            """
            import resource
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
            kept = [open("/dev/null") for _ in range(300)]
            """
        ),
    ),
    Case(
        name="threads without an end",
        causes=("too-many-processes",),
        fault=at_third(
            """
            import resource, threading
            size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
            for _ in range(200):
                threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
            """
        ),
    ),
    Case(
        name="disk full",
        causes=("disk-full",),
        culprit=0,
        rank=0,
        fault=at_third(
            """
            with os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb") as stream:
                stream.write(bytes(1 << 20))
            """
        ),
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
    Case(
        name="port taken",
        causes=("port-taken",),
        fault=at_third(
            """
            import socket
            one, two = socket.socket(), socket.socket()
            one.bind(("127.0.0.1", 0))
            one.listen()
            two.bind(one.getsockname())
            """
        ),
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
    Case(
        name="extra collective on one rank",
        causes=("paths-differ",),
        ranks=3,
        fault=at_third("out.tolist()"),
    ),
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
    Case(name="SIGSTOP", causes=("stopped",), outcome="stalls", fault=at_third("os.kill(os.getpid(), 19)")),
    Case(name="sleep", causes=("sleeps",), outcome="stalls", fault=at_third("time.sleep(60)")),
    Case(
        name="GIL held asleep",
        causes=("interpreter-held",),
        outcome="stalls",
        # No sleep of C's: the signal that asks for stacks would end it.
        fault=at_third(
            """
            library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
            library.pthread_mutex_lock(mutex)
            library.pthread_mutex_lock(mutex)
            """
        ),
    ),
    Case(
        name="GIL held computing",
        causes=("interpreter-held",),
        outcome="stalls",
        fault=at_third('import re\nre.match(r"(a+)+$", "a" * 60 + "b")'),
    ),
    Case(
        name="infinite loop in Python",
        causes=("computes",),
        outcome="stalls",
        fault=at_third("while True:\n    pass"),
    ),
    Case(
        name="deadlocked lock",
        causes=("lock",),
        outcome="stalls",
        fault=at_third("import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()"),
    ),
    Case(
        name="empty queue",
        causes=("lock",),
        outcome="stalls",
        fault=at_third("import queue\nqueue.Queue().get()"),
    ),
    Case(
        name="thread that never ends",
        causes=("lock",),
        outcome="stalls",
        fault=at_third(
            """
            import threading
            thread = threading.Thread(target=threading.Event().wait, daemon=True)
            thread.start()
            thread.join()
            """
        ),
    ),
    Case(
        name="socket without an answer",
        causes=("waits-outside",),
        outcome="stalls",
        fault=at_third("import socket\none, two = socket.socketpair()\none.recv(1)"),
    ),
    Case(
        name="child that never ends",
        causes=("waits-outside",),
        outcome="stalls",
        fault=at_third("pid = os.posix_spawn('/bin/sleep', ['sleep', '60'], os.environ)\nos.waitpid(pid, 0)"),
    ),
    Case(
        name="file locked by another",
        causes=("waits-outside",),
        outcome="stalls",
        fault=at_third(
            """
            import fcntl
            one, two = (libc.open(f"{HERE}/locked".encode(), os.O_RDWR | os.O_CREAT, 0o644) for _ in range(2))
            fcntl.flock(one, fcntl.LOCK_EX)
            fcntl.flock(two, fcntl.LOCK_EX)
            """
        ),
    ),
    Case(
        name="uninterruptible (state D)",
        causes=("uninterruptible",),
        outcome="stalls",
        # The parent of a spawn cannot be interrupted until the child has begun its program, which waits.
        fault=at_third(
            """
            libc.mkfifo(f"{HERE}/fifo".encode(), 0o644)
            opened = (os.POSIX_SPAWN_OPEN, 5, f"{HERE}/fifo", os.O_RDONLY, 0)
            os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[opened])
            """
        ),
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

DAILY = ("kill -9", "sleep", "extra collective on one rank")
