"""`ronde verify` does not cry wolf: right runs hold, whatever the seed, the data and the processor.

Another processor is stood in for by capping the instruction sets that torch and oneDNN use on this one.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ronde.verify.proof import verify
from ronde.verify.report import to_text
from ronde.verify.runs import Job, run_plain
from support.warm import WarmHost

CAPS = {
    "as it is": {},
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "sse41": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
SCRIPTS = [
    Path(__file__).parents[1] / "scripts" / f"{name}.py"
    for name in (
        "char_rnn classifier clip_and_log contrastive distillation early_stopping ema gan gpt "
        "gradient_accumulation lion mixture multitask numpy_metrics padded_text resnet_batchnorm swa "
        "transformer vae wgan_gp"
    ).split()
]
SEEDS = range(10)


@pytest.fixture(scope="module")
def capped(request: pytest.FixtureRequest) -> Iterator[WarmHost]:
    """A host that has imported torch under a cap; what it starts has the cap as well."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CAPS[request.param].items():
            patch.setenv(name, value)
        with WarmHost() as host:
            yield host


def cases() -> Iterator[object]:
    jobs = [(DIGITS, ("--data", "fashion-mnist")), (DIGITS, ("--data", "digits"))]
    jobs += [(script, ()) for script in SCRIPTS]
    for number, (script, arguments) in enumerate(jobs):
        for seed in SEEDS:
            # Every script meets every cap.
            cap = list(CAPS)[(number + seed) % len(CAPS)]
            name = "-".join((script.stem, *arguments[1:], str(seed), cap))
            yield pytest.param(script, arguments, seed, cap, id=name)


# Every day tests/test_public.py asks the same of public scripts.
@pytest.mark.soak
@pytest.mark.parametrize(("script", "arguments", "seed", "capped"), list(cases()), indirect=["capped"])
def test_a_right_run_holds(script: Path, arguments: tuple[str, ...], seed: int, capped: WarmHost) -> None:
    if "fashion-mnist" in arguments and not FASHION_MNIST.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    with tempfile.TemporaryDirectory() as folder:
        # Most scripts set a seed of their own.
        text = re.sub(r"(manual_seed|random\.seed|default_rng)\(\d+\)", rf"\1({seed})", script.read_text())
        (Path(folder) / script.name).write_text(text)
        job = Job(script=script.name, arguments=arguments, seed=seed, directory=Path(folder))
        proof = verify(job, ranks=2, starter=capped.start)
    assert proof.holds, to_text(proof)
    assert (proof.note, proof.rounding) == ("", None), to_text(proof)


@pytest.mark.soak
@pytest.mark.parametrize("capped", ["default"], indirect=True)
def test_a_cap_is_heard(capped: WarmHost, tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("import torch; print(torch.backends.cpu.get_cpu_capability())")
    job = Job(script="told.py", directory=tmp_path)
    assert run_plain(job, tmp_path / "run", starter=capped.start).stdout == "DEFAULT\n"


def test_every_script_meets_every_cap() -> None:
    met = {(case.values[0], case.values[1], case.values[3]) for case in cases()}  # pyright: ignore[reportAttributeAccessIssue]
    assert len(met) == (2 + len(SCRIPTS)) * len(CAPS)
    assert len(SCRIPTS) == 20
