"""Faults of hosts, of links between them, and of differences between hosts."""

from __future__ import annotations

from benchmarks.chaos.case import Case, at_third

__all__ = ["CASES_OF_HOSTS"]

# The run goes on until what is done to its hosts ends it.
_GOES_ON = {"steps": 20_000, "fault": at_third("pass")}

CASES_OF_HOSTS = (
    # A host, or the way to it.
    Case(name="host falls silent", causes=("host-silent",), host="two", harm="cut", **_GOES_ON),
    Case(name="host loses its power", causes=("host-silent",), host="two", harm="off", **_GOES_ON),
    Case(name="link cut towards a host", causes=("host-silent",), host="two", harm="deafen", **_GOES_ON),
    Case(name="link cut from a host", causes=("host-silent",), host="two", harm="mute", **_GOES_ON),
    Case(
        name="link cut between two hosts",
        causes=("link-cut",),
        rank=0,
        host="two",
        hosts=("two", "three"),
        harm="forget",
        outcome="stalls",
        **_GOES_ON,
    ),
    Case(
        name="1 Mbit/s on a link",
        causes=("slow-link",),
        rank=-1,
        host="-",
        harm="slow",
        outcome="stalls",
        steps=20_000,
        fault=at_third("pass") + "\ndef make_model():\n    return nn.Linear(16, 1 << 17)\n",
    ),
    Case(
        name="1 Mbit/s on a link before a run",
        causes=("link",),
        host="two",
        outcome="preflight",
        there="tc qdisc replace dev eth0 root tbf rate 1mbit burst 32kb latency 400ms",
    ),
    # What is not alike.
    Case(name="clock off by an hour", causes=("clock",), host="two", outcome="preflight", clock=3600.0),
    Case(
        name="kill -9 under a clock off by an hour",
        causes=("killed",),
        host="two",
        clock=3600.0,
        fault=at_third("os.kill(os.getpid(), 9)"),
    ),
    Case(
        name="another torch on a host",
        causes=("versions",),
        host="two",
        outcome="refused",
        there="sed \"s/^__version__ = .*/__version__ = '2.12.1'/\" {torch} > {here}/version.py; "
        "mount --bind {here}/version.py {torch}",
    ),
    Case(
        name="another script on a host",
        causes=("script",),
        host="two",
        outcome="refused",
        there="sed 's/lr=0.1/lr=0.2/' {here}/train.py > {here}/other; "
        "mount --bind {here}/other {here}/train.py",
    ),
    Case(
        name="missing file on a host",
        causes=("file-missing",),
        host="two",
        there="mkdir {here}/data; touch {here}/data/rows; mount -t tmpfs none {here}/data",
        fault="""
        def make_data():
            mark()
            rows = os.path.getsize(f"{HERE}/data/rows")
            return torch.utils.data.TensorDataset(torch.randn(24 * STEPS + rows, 16))
        """,
    ),
    Case(
        name="name that means loopback",
        causes=("host-name",),
        host="two",
        outcome="refused",
        launcher_there="sed 's/.* two$/127.0.0.1 two/' /etc/hosts > {here}/hosts; "
        "cat {here}/hosts > /etc/hosts",
    ),
    Case(
        name="full disk on a host",
        causes=("disk",),
        host="two",
        outcome="refused",
        there="mkdir -p {here}/run/host-1; mount -t tmpfs -o size=4m none {here}/run/host-1",
    ),
    # The launcher's host.
    Case(name="store killed", causes=("store-lost",), rank=None, host="-", harm="store", **_GOES_ON),
    Case(
        name="launcher killed",
        causes=("launcher-lost",),
        rank=None,
        host="-",
        harm="launcher",
        outcome="ends",
        **_GOES_ON,
    ),
    # The way to a host.
    Case(
        name="ssh that asks for a password",
        causes=("reached",),
        host="two",
        outcome="refused",
        needs="sshd",
    ),
)
