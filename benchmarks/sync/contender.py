"""Contenders: plans on the plain script, and torch's DistributedDataParallel by hand."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

__all__ = ["ALONE", "BASE", "CONTENDERS", "Contender", "command"]

_SCRIPTS = Path(__file__).with_name("scripts")
BASE = "DDP by hand"
ALONE = "no exchange"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One way of synchronising.

    Attributes:
        plan: the plan of `ronde run`; "" for the script by hand.
        accuracy_plan: the plan of runs to an accuracy, if another: with a warm-up.
        hook: torch's hook in the script by hand.
        adam: whether the optimizer is Adam, not SGD with momentum.
        share: the factor of timed steps, by which all contenders are timed about as long.
    """

    name: str
    plan: str = ""
    accuracy_plan: str = ""
    hook: str = "none"
    adam: bool = False
    share: int = 1

    @property
    def script(self) -> Path:
        return _SCRIPTS / ("plain.py" if self.plan else "with_ddp.py")


_ALL = (
    Contender(name=BASE),
    Contender(name="DDP with fp16 hook", hook="fp16"),
    Contender(name="DDP with PowerSGD hook", hook="powersgd", share=4),
    Contender(name="ddp", plan="ddp"),
    Contender(name="fp16-allreduce", plan="fp16-allreduce"),
    Contender(name="bytegrad", plan="bytegrad", share=2),
    Contender(name="qadam", plan="qadam,warm-up=2", adam=True, share=2),
    Contender(name="twobit", plan="twobit", share=4),
    Contender(name="onebit", plan="onebit", share=4),
    Contender(name="powersgd", plan="powersgd", share=4),
    Contender(name="dgc", plan="dgc", accuracy_plan="dgc,warm-up=937", share=8),
    Contender(name="local-sgd", plan="local-sgd", share=4),
    Contender(name="decentralized", plan="decentralized"),
    Contender(name="decentralized-lowprec", plan="decentralized-lowprec", share=2),
    Contender(name="async-average", plan="async-average", share=8),
    # The time of a step without communication.
    Contender(name=ALONE, plan="local-sgd,every=1000000", share=8),
)
CONTENDERS = {each.name: each for each in _ALL}


def command(contender: Contender, torchrun: tuple[str, ...], arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command for the ranks of one host, with options of torchrun."""
    start = (sys.executable, "-m", "torch.distributed.run", *torchrun)
    ronde = ("-m", "ronde", "run", "--quiet", "--plan", contender.plan) if contender.plan else ()
    adam = ("--adam",) if contender.adam else ()
    hook = () if contender.plan else ("--hook", contender.hook)
    return (*start, *ronde, str(contender.script), *arguments, *adam, *hook)
