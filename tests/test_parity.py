"""Every exact plan gives the single-device answer for every script: L1 to L6, in double precision.

A new exact plan is one word in EXACT_PLANS, and a line in SAMPLES says what of it runs every day.
A new script is one file in tests/scripts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from packages import missing
from ronde.testing.parity import assert_parity
from ronde.verify.runs import FinishedRun, Job, run_plain
from said import compare_said
from support.warm import WarmHost

# Plans of several axes, and the scripts that try what they have to do with each other: all in `make soak`.
COMBINED = {
    "zero1,recompute=selective": {("transformer", 2), ("clip_and_log", 3)},
    "zero2,precision=bf16": {("classifier", 2), ("gradient_accumulation", 3)},
    "zero2,micro-batches=2": {("gradient_accumulation", 2), ("resume", 3)},
    "zero3,recompute=full,micro-batches=2": {
        *{("transformer", 1), ("gpt", 1), ("hf_tiny", 1)},
        *{("transformer", 2), ("tied", 3), ("gpt", 2)},
    },
    "zero3,offload=all,micro-batches=3": {("classifier", 1), ("transformer", 1)},
    "zero3,precision=bf16": {("transformer", 2), ("tied", 2)},
    "zero3,precision=fp16,recompute=full": {("classifier", 2), ("transformer", 3)},
    "central,recompute=full": {("resnet_batchnorm", 3), ("tied", 2)},
    "zero3,compile=true": {("mixture", 2), ("gpt", 2)},
    "zero3,offload=all,recompute=selective": {("transformer", 1)},
    "tensor=2,recompute=full": {("transformer", 2), ("gpt", 2)},
    "tensor=2,recompute=selective": {("gpt", 2), ("hf_tiny", 2)},
    "tensor=2,precision=bf16": {("transformer", 2), ("gpt", 2)},
    "pipeline=2,micro-batches=3,precision=bf16": {("transformer", 2), ("gpt", 2)},
    "context=2,precision=bf16": {("transformer", 2), ("gpt", 2)},
}
EXACT_PLANS = (
    "ddp",
    "zero1",
    "zero2",
    "zero3",
    "central",
    "zero3,offload=all",
    "micro-batches=3",
    "recompute=full",
    "recompute=selective",
    "precision=bf16",
    "precision=fp16",
    "precision=tf32",
    "compile=true",
    "hybrid",
    "hybrid,state=zero2",
    "hybrid,servers=1",
    "hybrid,servers=2",
    "ps",
    "ps,servers=2",
    "ps,optimizer-on=worker",
    "tensor=2",
    "data=2,tensor=2",
    "pipeline=2,micro-batches=3",
    "data=2,pipeline=2,micro-batches=2",
    "tensor=2,pipeline=2,micro-batches=2",
    "data=2,expert=2",
    "context=2",
    "data=2,context=2",
    "data=2,tensor=2,zero1",
    "data=2,pipeline=2,zero1,micro-batches=2",
    *COMBINED,
)
# These round, and leave float64 as it is: tried in single precision, against one device that rounds alike.
NARROW_PLANS = tuple(plan for plan in EXACT_PLANS if "precision=" in plan)
# One rank is plain python but for what it does by itself.
ON_ONE_RANK_TOO = (
    "zero3,offload=all",
    "zero3,offload=all,recompute=selective",
    "zero3,offload=all,micro-batches=3",
    "zero3,recompute=full,micro-batches=2",
    "micro-batches=3",
    "recompute=full",
    "recompute=selective",
)
# What a plan cannot keep for a script it refuses by name; tests/parallel has a test of each sentence.
REFUSED = {
    "micro-batches=3": {
        *{"ema", "frozen", "gan", "multitask", "recommender", "resnet_batchnorm", "swa", "wgan_gp"},
    },
    "precision=bf16": {"amp_fp16"},
    "precision=fp16": {"amp_bf16", "lbfgs", "optimizer_in_backward"},
}
# The bars of a histogram of weights are narrow around nought; `maml` is chaotic in 16 bits on one device too.
# In bfloat16 some CPUs' LSTM lets what is not a number from one row into others: `char_rnn` runs in parts.
# Of `ema` rounding is not measured, as batch norm forbids halves: 2.1e-3 in float16, a twentieth too much.
ROUNDED = {
    "precision=bf16": {"char_rnn", "maml", "tensorboard_log"},
    "precision=fp16": {"ema", "maml", "tensorboard_log"},
}
# Here ranks lie 3.1 to 4 times as far from plain torch as that from itself in halves; 3 times is allowed.
BEYOND_NOISE = {
    ("precision=bf16", "packed_gru", 3),
    ("precision=fp16", "lion", 3),
    ("precision=fp16", "wandb_offline", 3),
}
# Not every CPU has it.
WITH_NARROW_LSTM = {"char_rnn", "lstm_lm"}
SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.py"))
# In double precision scripts run to their end (none takes so many steps), so that their files are compared.
# In single precision rounding grows with every step, and twenty are what the tolerance is meant for.
STEPS = {"double": 1000, "as-is": 20}
# A step of LBFGS is four updates here, and close to the minimum rounding decides how many.
STEPS_OF = {("lbfgs", "as-is"): 5}

# On three ranks slices are uneven. These are the scripts in which that matters most in its own way:
# windows of accumulation, and fewer rows than ranks. Batch statistics on three have tests of their own
# (tests/modules/test_batch_norm_ranks.py), and flattened axes (test_laid_end_to_end_ranks.py).
ON_THREE_RANKS = {
    "gradient_accumulation",
    "small_batches",
}
# What has matrices to cut, or does with parameters and gradients what few others do.
CUT = (
    "transformer transformer_lm gpt tied hf_tiny hf_trainer classifier clip_and_log mixture ema lbfgs maml "
    "optimizer_in_backward checkpointing resume wgan_gp past_forward no_optimizer_module"
).split()
# Of these with less than that nothing divides by two.
NOTHING_CUT = {"tied": "TiedModel", "maml": "Net"}
SAID_UNCUT = ("GPT2LMHeadModel runs in parts, not as one piece: one of its arguments is a DynamicCache",)
# What has several layers, or does with parameters, gradients and random numbers what few others do. Refused:
# batch norm, checkpoints of the model's own, sparse gradients.
STAGED = (
    "transformer transformer_lm gpt tied hf_tiny hf_trainer classifier clip_and_log mixture lbfgs lstm_lm "
    "char_rnn seq2seq resume past_forward contrastive_module distillation gradient_accumulation outputs "
    "padded_text"
).split()
# What is slow by itself: two ranks, and those scripts of which each tries something of its own.
COMPILED = {
    ("classifier", 2),
    ("gpt", 2),
    ("mixture", 2),
    ("resnet_batchnorm", 2),
    ("tied", 2),
    ("transformer", 2),
}
# On a CPU nothing is rounded to TF32; tests/gpu has the rest.
TABLES = {("recommender", 2), ("recommender", 3)}
SPREAD = {(script, ranks) for script in ("sparse_embedding", "sparse_hybrid") for ranks in (2, 3)}
ONLY = {
    **COMBINED,
    "compile=true": COMPILED,
    "precision=tf32": {("classifier", 2), ("transformer", 3)},
    # Without a table or a sparse embedding they are the plans without it.
    "hybrid": TABLES | SPREAD,
    "hybrid,state=zero2": TABLES,
    "hybrid,servers=1": TABLES,
    "hybrid,servers=2": TABLES,
    # A mesh has as many ranks as its degrees say.
    "tensor=2": {(script, 2) for script in CUT},
    "data=2,tensor=2": {(script, 4) for script in ("transformer", "gpt", "clip_and_log", "hf_tiny")},
    "pipeline=2,micro-batches=3": {(script, 2) for script in STAGED},
    "data=2,pipeline=2,micro-batches=2": {(script, 4) for script in ("transformer", "gpt", "hf_tiny")},
    "tensor=2,pipeline=2,micro-batches=2": {
        (script, 4) for script in ("transformer", "gpt", "tied", "clip_and_log", "hf_tiny", "resume")
    },
    "context=2": {
        (script, 2)
        for script in ("transformer", "transformer_lm", "gpt", "hf_tiny", "clip_and_log", "seq2seq")
    },
    "data=2,context=2": {(script, 4) for script in ("transformer", "gpt")},
    "data=2,expert=2": {(script, 2) for script in ("experts", "mixture", "clip_and_log")},
    "data=2,tensor=2,zero1": {(script, 4) for script in ("transformer", "gpt", "clip_and_log", "resume")},
    "data=2,pipeline=2,zero1,micro-batches=2": {
        (script, 4) for script in ("transformer", "gpt", "clip_and_log", "resume")
    },
}
# Of a plan that differs from ddp in one part only, those that try this part; `make soak` runs all.
SAMPLES = {
    "zero1": {("resume", 2), ("amp_fp16", 2)},
    "zero2": {("clip_and_log", 3)},
    "zero3": {("tied", 3), ("gan", 2)},
    "central": {
        ("classifier", 3),
    },
    "zero3,offload=all": {
        ("ema", 1),
    },
    "hybrid": {("sparse_hybrid", 3)},
    "hybrid,state=zero2": set(),
    "hybrid,servers=1": set(),
    "hybrid,servers=2": {("recommender", 3)},
    "ps": {("clip_and_log", 2)},
    "ps,servers=2": set(),
    "ps,optimizer-on=worker": set(),
    "micro-batches=3": {
        ("maml", 2),
    },
    # tests/parallel/test_recompute.py computes again every day, all of it and with selected operations.
    "recompute=full": set(),
    "recompute=selective": set(),
    "precision=bf16": {("classifier", 2)},
    "precision=fp16": {("classifier", 2)},
    "tensor=2": {("gpt", 2)},
    "data=2,tensor=2": set(),
    "pipeline=2,micro-batches=3": {("clip_and_log", 2)},
    "data=2,pipeline=2,micro-batches=2": set(),
    "tensor=2,pipeline=2,micro-batches=2": set(),
    "data=2,expert=2": set(),
    "context=2": set(),
    "data=2,context=2": set(),
    "data=2,tensor=2,zero1": set(),
    "data=2,pipeline=2,zero1,micro-batches=2": set(),
    "precision=tf32": set(),
    # tests/modules/test_compiled_ranks.py compiles every day.
    "compile=true": set(),
    **{plan: set() for plan in COMBINED},
}
IN_SINGLE_PRECISION = {"classifier", "amp_bf16"}
# In double precision these are what another script is without autocast.
NARROW_BY_ITSELF = {"amp_bf16"}
# What a script asks for beside every exact plan, run in double precision on two ranks.
PLANS_OF = {"char_rnn": ("batch-dim=1",)}
# Too slow for every day; each has a cheaper sibling that covers most of it.
IN_SOAK_ONLY = {
    "amp_fp16": "the same under zero1",
    "clip_and_log": "the same in stages, under zero2 and with servers",
    "clock_seeds": "seeds_nothing",
    "compiled": "tests/modules/test_compiled_ranks.py",
    "checkpointing": "tests/parallel/test_recompute.py",
    "config_files": "preprocessing",
    "contrastive": "contrastive_module",
    "ema": "swa",
    "distillation": "multitask",
    "early_stopping": "classifier",
    "experts": "mixture",
    "experiment": "preprocessing",
    "frozen": "multitask",
    "gpt": "the same under tensor=2",
    "iterable_dataset": "tests/batches/test_loader_ranks.py",
    "hf_tiny": "own_loss",
    "hf_trainer": "own_loss",
    "gan": "the same under zero3",
    "lbfgs": "tests/parallel/test_sharded_update_ranks.py",
    "lion": "classifier",
    "lstm_lm": "char_rnn",
    "maml": "the same in micro-batches",
    "mixture": "hooks",
    "no_optimizer_module": "optimizer_in_backward",
    "outputs": "tests/parallel/test_outputs_ranks.py",
    "packed_gru": "padded_text",
    "per_sample": "maml",
    "resnet_batchnorm": "tests/modules/test_batch_norm_ranks.py",
    "recommender": "the same under hybrid with servers",
    "resume": "the same under zero1",
    "samplers": "tests/batches/test_loader_ranks.py",
    "seq2seq": "char_rnn",
    "sparse_embedding": "tests/parallel/test_spread_rows_ranks.py",
    "sparse_hybrid": "the same under hybrid",
    "tied": "the same under zero3",
    "torch_metrics": "numpy_metrics",
    "transformer": "gpt",
    "transformer_lm": "gpt",
    "two_loaders": "samplers",
    "two_losses": "multitask",
    "vae": "swa",
    "wandb_offline": "tensorboard_log",
    "wgan_gp": "gan",
}
# What is said of a script at its end, and true of it: of each note a part that tells it from others. Of all
# other scripts nothing is said: they run on shards.
_HOST = "its forward reads a value of the batch on the host"
_JOINS = "rows of its output depend on other rows, or on their number"
_COLLATE = "every rank loads whole batches, because its collate_fn may use all samples"
SAID: dict[str, tuple[str, ...]] = {
    "augmentation": ("AugmentedDigits: every rank loads whole batches, because its samples draw",),
    "char_rnn": ("RNNModel: the batch was found on the second axis",),
    # Layers are dropped by `random.random()`.
    "checkpointing": ("Model runs in parts, not as one piece: it draws random numbers by other generators",),
    "compiled": (
        "Net was given to torch.compile and runs uncompiled where it draws random numbers",
        "smoothed was given to torch.compile and runs uncompiled, because it works on values of all ranks",
        "train_step was given to torch.compile and runs uncompiled, because it works on values of all ranks",
    ),
    # A loss with a parameter, of all pairs.
    "contrastive_module": (f"ClipLoss runs in parts, not as one piece: {_JOINS} (mm)",),
    "detection": ("Scenes: " + _COLLATE, "Detector runs in parts, not as one piece: its batch is a list"),
    # It returns `len(x)`.
    "distillation": ("Net runs in parts, not as one piece: a number or text among its outputs",),
    "hf_tiny": (
        "list: " + _COLLATE,
        "BertForSequenceClassification runs in parts, not as one piece: an output without a batch axis",
        "GPT2LMHeadModel runs in parts, not as one piece: an output without a batch axis",
    ),
    "hf_trainer": (
        "Words: " + _COLLATE,
        "GPT2ForSequenceClassification runs in parts, not as one piece: an output without a batch axis",
    ),
    "hooks": (
        "GradCam runs in parts, not as one piece: it takes gradients inside",
        "Sequential runs in parts, not as one piece: it has hooks",
    ),
    "iterable_dataset": (
        "Shuffled: every rank loads whole batches, because an iterable dataset has no indices",
        "Lines: every rank loads whole batches, because an iterable dataset has no indices",
    ),
    # Which rows go to which expert is asked for on the host.
    "experts": (f"Language runs in parts, not as one piece, because of Mixture inside it: {_HOST}",),
    "mixture": (f"Net runs in parts, not as one piece, because of MoE inside it: {_HOST}",),
    "no_optimizer": ("nothing was cut",),
    "own_loss": (
        "list: " + _COLLATE,
        "SequenceClassifier runs in parts, not as one piece: an output without a batch axis",
    ),
    # To pack, sequences are sorted by their lengths.
    "packed_gru": ("list: " + _COLLATE, f"LineClassifier runs in parts, not as one piece: {_JOINS} (sort)"),
    "padded_text": ("Lines: " + _COLLATE,),
    "transformer_lm": ("TransformerModel: the batch was found on the second axis",),
    "per_sample": ("inside a transform of torch.func",),
    "wandb_offline": ("wandb.watch was passed over",),
}
# Models without repeated blocks, by class, and the scripts that train them: recompute says that they keep
# everything.
WITHOUT_BLOCKS = {
    "Sequential": (
        "amp_fp16 augmentation clip_and_log clock_seeds config_files detection early_stopping experiment "
        "gradient_accumulation hooks iterable_dataset lbfgs lion no_optimizer_module numpy_metrics "
        "optimizer_in_backward past_forward preprocessing resume samplers seeds_nothing swa "
        "tensorboard_log torch_metrics two_loaders two_losses wandb_offline"
    ),
    "Net": "amp_bf16 classifier compiled ema frozen maml multitask small_batches",
    "Encoder": "contrastive outputs seq2seq",
    "RNNModel": "char_rnn lstm_lm",
    "Generator": "gan wgan_gp",
    "Tower": "contrastive_module",
    "Discriminator": "gan",
    "Decoder": "outputs",
    "Heads": "outputs",
    "Tagger": "padded_text",
    "SparseAutoencoder": "past_forward",
    "Topics": "sparse_embedding",
    "Towers": "sparse_hybrid",
    "WideAndDeep": "recommender",
    "AttnDecoder": "seq2seq",
    "TiedModel": "tied",
    "VAE": "vae",
    "Critic": "wgan_gp",
}
# Of models that run in parts on several ranks, and on one as one piece.
WITHOUT_BLOCKS_ALONE = {
    "detection": "Detector",
    "distillation": "Net",
    "hooks": "GradCam",
    "multitask": "UncertaintyWeighting",
    "own_loss": "SequenceClassifier",
    "packed_gru": "LineClassifier",
    "per_sample": "Sequential",
}
# Optimizers that may look at a whole tensor, which plans that cut state say.
OWN_UPDATE = {"lbfgs": "LBFGS", "lion": "Lion"}
# It keeps the `state_dict()` that it has saved in a variable, through the next epoch.
HOLDS_STATE = {"resume": "SGD"}
# Models that compile=true leaves as they are.
_DRAWS = "was given to torch.compile and runs uncompiled where it draws random numbers"
_MEETS = "was given to torch.compile and runs uncompiled in training because of its batch norm"
UNCOMPILED = {
    "classifier": f"Net {_DRAWS}",
    "gpt": f"GPT {_DRAWS}",
    "resnet_batchnorm": f"ResNet {_MEETS}",
    "transformer": f"RowTransformer {_DRAWS}",
}
Plain = Callable[[Path, str, str], FinishedRun]


# A pipeline's ranks have the keys of their own layers, so that a cache of them is not taken apart.
SAID_IN_STAGES = (
    "GPT2Block runs in parts, not as one piece, because of GPT2Attention inside it: it changes a",
    "GPT2LMHeadModel runs in parts, not as one piece, because of GPT2Model inside it: it returns",
)


def said_of(script: str, plan: str, ranks: int, *, whole: bool) -> tuple[str, ...]:
    """What is said of a script in general, and what the plan and the number of ranks make of that."""
    said = SAID.get(script, ())
    if script == "small_batches" and ranks > 2 and not whole:  # it begins with batches of one and two rows
        said += ("nothing was cut",)
    elif script == "small_batches" and ranks > 2:
        said += ("calls of modules in training were on fewer rows than there are ranks",)
    if script == "hf_trainer" and ranks == 3 and plan == "micro-batches=3":  # some pieces are single rows
        said += ("GPT2ForSequenceClassification is computed whole where a rank has a single row:",)
    if script == "checkpointing" and ranks >= 3 and plan == "micro-batches=3":  # all pieces are single rows
        said = ("Model is computed whole where a rank has a single row: it draws random numbers by other",)
    if script == "experts" and plan == "micro-batches=3" and ranks == 5:
        said = ("Language is computed whole where a rank has a single row: its forward", "nothing was cut")
    if plan == "tensor=2" or plan.startswith("tensor=2,recompute"):  # nothing of a batch is cut
        said = tuple(each for each in SAID_UNCUT if script == "hf_tiny")
    if "pipeline=2" in plan and script == "hf_tiny":
        said = (*(each for each in said if "GPT2" not in each), *SAID_IN_STAGES)
    if "tensor=2" in plan and script in NOTHING_CUT:
        said += (f"tensor=2 cuts nothing of {NOTHING_CUT[script]}",)
    if "expert=2" in plan and script == "experts":  # a mixture is one operation there
        said = ()
    if "expert=2" in plan and script != "experts":
        nothing = (
            "does not spread the experts of MoE" if script == "mixture" else "spreads nothing of Sequential"
        )
        said += (f"expert=2 {nothing}",)
    if "context=2" in plan and script in ("clip_and_log", "seq2seq"):
        said += ("context=2 cuts nothing",)
    if plan == "batch-dim=1":
        return tuple(each for each in said if "the second axis" not in each)  # it need not be looked for
    if "precision=tf32" in plan:
        said += ("precision=tf32 changes nothing on a CPU",)
    if "compile=true" in plan and script in UNCOMPILED:
        said += (UNCOMPILED[script],)
    recompute = next((item for item in plan.split(",") if item.startswith("recompute=")), None)
    if recompute is not None:
        said += tuple(
            f"{model} keeps all its activations: {recompute} recomputes repeated blocks"
            for model, scripts in WITHOUT_BLOCKS.items()
            if script in scripts.split()
        )
        if ranks == 1 and script in WITHOUT_BLOCKS_ALONE:
            said += (f"{WITHOUT_BLOCKS_ALONE[script]} keeps all its activations: {recompute} computes",)
        if ranks == 1 and script == "hf_tiny":
            said += ("GPT2Block keeps all its activations: it is given a DynamicCache",)
        if script == "compiled":
            said += (f"Net was given to torch.compile, where {recompute} has no effect",)
    steps_elsewhere = plan.startswith("ps") and "optimizer-on=worker" not in plan
    in_parts = plan.startswith(("zero", "central", "data=2,pipeline=2,zero1")) or steps_elsewhere
    if "tensor=2" in plan and script in HOLDS_STATE:
        said += (f"the state of {HOLDS_STATE[script]} was whole on every rank for some steps",)
    if in_parts and script in OWN_UPDATE:
        said += (f"the optimizer state of {OWN_UPDATE[script]} is whole",)
    if in_parts and script in HOLDS_STATE:
        said += (f"the state of {HOLDS_STATE[script]} was whole on every rank for some steps",)
    return said


@pytest.fixture(scope="module")
def plain(host: WarmHost, tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """Plain runs, recorded once for each script and precision, the default type's and the plan's."""
    known: dict[tuple[Path, str, str], FinishedRun] = {}

    def recorded(script: Path, types: str, plan: str) -> FinishedRun:
        job = Job(
            script=script.name,
            steps=_steps(script, types),
            double=types == "double",
            directory=script.parent,
            plan=plan,
        )
        key = script, types, job.reference
        if key not in known:
            known[key] = run_plain(job, tmp_path_factory.mktemp("plain") / "run", starter=host.start)
        return known[key]

    return recorded


@functools.cache
def _has_narrow_lstm(dtype: torch.dtype) -> bool:
    """Whether torch computes an LSTM in this type on this CPU."""
    try:
        with torch.autocast("cpu", dtype=dtype):
            torch.nn.LSTM(8, 8)(torch.zeros(2, 2, 8))
    except RuntimeError:
        return False
    return True


def _steps(script: Path, types: str) -> int:
    return STEPS_OF.get((script.stem, types), STEPS[types])


def cases() -> Iterator[object]:
    for script in SCRIPTS:
        for plan in (*EXACT_PLANS, *PLANS_OF.get(script.stem, ())):
            if script.stem in REFUSED.get(plan, set()) | ROUNDED.get(plan, set()):
                continue
            for types in ("as-is",) if plan in NARROW_PLANS else ("double", "as-is"):
                alone = (1,) if plan in ON_ONE_RANK_TOO else ()
                mesh = (
                    (4,)
                    if plan.startswith(
                        ("data=2,tensor", "data=2,pipeline", "data=2,context", "tensor=2,pipeline=2")
                    )
                    else ()
                )
                for ranks in (*alone, *mesh, *((2, 3, 5) if types == "double" else (2, 3))):
                    quick = ranks == (3 if script.stem in ON_THREE_RANKS else 2)
                    if types == "as-is":
                        quick = ranks == 2 and script.stem in IN_SINGLE_PRECISION
                    elif script.stem in NARROW_BY_ITSELF:
                        quick = False
                    quick = quick and script.stem not in IN_SOAK_ONLY
                    if plan in ONLY and (script.stem, ranks) not in ONLY[plan]:
                        continue
                    if (plan, script.stem, ranks) in BEYOND_NOISE:
                        continue
                    if plan in SAMPLES:
                        exact = types == "double" or plan in NARROW_PLANS
                        quick = exact and (script.stem, ranks) in SAMPLES[plan]
                    name = f"{plan}-{script.stem}-{ranks}-{types}"
                    marks = () if quick else pytest.mark.soak
                    yield pytest.param(plan, script, ranks, types, id=name, marks=marks)


@pytest.mark.parametrize(("plan", "script", "ranks", "types"), list(cases()))
def test_ranks_give_the_single_device_answer(
    plan: str, script: Path, ranks: int, types: str, host: WarmHost, plain: Plain, tmp_path: Path
) -> None:
    if missing(script):
        pytest.skip(f"{script.name} needs {missing(script)[0]}, which is not installed")
    for narrow, type_ in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if f"precision={narrow}" in plan and script.stem in WITH_NARROW_LSTM and not _has_narrow_lstm(type_):
            pytest.skip(f"torch has no LSTM in {type_} on this CPU")
    proof = assert_parity(
        script,
        ranks=ranks,
        place=tmp_path,
        steps=_steps(script, types),
        double=types == "double",
        plan=plan,
        plain=plain(script, types, plan),
        starter=host.start,
    )
    # A script that had nothing to compare would prove nothing.
    assert sum(not each.compared.startswith("0") for each in proof.verdicts) >= 3
    # In single precision a run ends after some steps; on one rank little is cut, and little is said.
    whole = types == "double" and ranks > 1
    compare_said(tmp_path / "ranks" / "run", said_of(script.stem, plan, ranks, whole=whole), whole=whole)
