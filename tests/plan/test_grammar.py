"""The grammar: strings, files, what wins, and the canonical spelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from ronde.errors import PlanError
from ronde.plan import PRESETS, Communication, Compute, Data, Mesh, Plan, State, Update, expand, read_plan
from ronde.plan.axes import KEYS
from ronde.plan.cuts import Cuts
from ronde.plan.key import Choice, Flag, Integer, Number

SAMPLES = {
    Integer: ("1", "7"),
    Number: ("0.5", "25", "1e-05"),
    Flag: ("true", "false"),
    Cuts: ("*.fc1.weight:0", "*.qkv.*:0/3+head.*:replicated"),
}


def every_item() -> list[str]:
    items = []
    for key in KEYS.values():
        words = key.kind.words if isinstance(key.kind, Choice) else SAMPLES[type(key.kind)]
        items += [f"{key.name}={word}" for word in words]
    return items


@pytest.mark.parametrize("item", every_item())
def test_every_item_is_read_and_round_trips(item: str):
    plan = expand(item)
    name, _, text = item.partition("=")
    assert plan.item(name) == item
    assert plan.value(name) == KEYS[name].read(text)
    assert expand(str(plan)) == plan
    assert str(expand(str(plan))) == str(plan)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_round_trips(name: str):
    plan = expand(name)
    assert expand(str(plan)) == plan


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("ddp", "ddp"),
        ("state=replicated", "ddp"),
        ("bucket-mb=25.0", "bucket-mb=25"),
        ("bucket-mb=auto", "ddp"),
        ("data=auto", "ddp"),
        (" ddp , bucket-mb = 10.0 ", "bucket-mb=10"),
        ("batch-dim=1,rng=global,bucket-mb=0.25", "bucket-mb=0.25,rng=global,batch-dim=1"),
        ("loading=full,data=2", "data=2,loading=full"),
        ("data=02", "data=2"),
    ],
)
def test_a_plan_has_one_canonical_spelling(text: str, spelled: str):
    plan = Plan.parse(text)
    assert str(plan) == spelled
    assert Plan.parse(spelled) == plan


def test_the_python_form_equals_the_string():
    assert Plan(
        mesh=Mesh(tensor=2, pipeline=4),
        state=State(placement="zero3", offload="all"),
        communication=Communication(algorithm="shared-memory", error_feedback=True, compressor="topk"),
        update=Update(rule="bounded", staleness=0),
        compute=Compute(precision="bf16", schedule="1f1b", micro_batches=8),
        data=Data(batch_dim=1),
    ) == expand(
        "zero3,tensor=2,pipeline=4,offload=all,algorithm=shared-memory,compressor=topk,error-feedback=true,"
        "update=bounded,staleness=0,precision=bf16,schedule=1f1b,micro-batches=8,batch-dim=1"
    )


def test_a_later_key_wins_over_the_values_of_presets():
    assert expand("local-sgd,every=16").update.every == 16
    assert expand("zero1,local-sgd,state=replicated") == expand("local-sgd")
    assert expand("ddp,hierarchical").communication.algorithm == "hierarchical"


def test_two_presets_that_set_one_key_differently_are_refused():
    with pytest.raises(
        PlanError, match="preset zero1 sets state=zero1 and preset zero2 sets state=zero2; keep one"
    ):
        expand("zero1,zero2")
    with pytest.raises(PlanError, match="preset local-sgd sets update=local and preset ddp sets update=sync"):
        expand("local-sgd,ddp")


def test_an_explicit_item_may_stand_before_a_preset_that_leaves_it_alone():
    assert expand("precision=bf16,zero3") == expand("zero3,precision=bf16")
    assert expand("state=zero3,zero3") == expand("zero3")


def test_the_same_explicit_value_twice_is_no_error():
    assert expand("every=4,update=local,every=4") == expand("update=local,every=4")
    assert expand("bucket-mb=10,bucket-mb=10.0") == expand("bucket-mb=10")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("every=4,every=8", "every=4 and every=8 contradict each other; keep one of them"),
        ("data=auto,data=4", "data=auto and data=4 contradict each other"),
        ("zero1,every=1,zero2,every=2", "every=1 and every=2 contradict each other"),
        (
            "state=zero1,zero3",
            "preset zero3 sets state=zero3, but state=zero1 stands before it; write the preset first",
        ),
        ("zero4", "unknown preset 'zero4' (did you mean zero3?); presets are ddp, hierarchical"),
        ("qqqqqq", "unknown preset 'qqqqqq'; presets are"),
        ("compile", "compile is a key, not a preset; write compile=VALUE (true or false)"),
        ("tf32", "tf32 is a value, not a preset; write precision=tf32"),
        ("bf16", "bf16 is a value, not a preset; write compressor=bf16 or precision=bf16"),
        (
            "precison=bf16",
            "unknown key 'precison' in a plan (did you mean precision?); keys are data, tensor",
        ),
        ("ddp=true", "ddp is a preset, not a key; write it as a bare word"),
        ("precision=bf61", "precision=bf61 is not a value of precision (did you mean bf16?)"),
        ("precision=", "plan 'precision=' has an incomplete item 'precision='"),
        ("=bf16", "incomplete item '=bf16'"),
        ("", "plan '' has an incomplete item ''; an item is a preset or key=value"),
        ("ddp,", "plan 'ddp,' has an incomplete item ''"),
        ("ddp,,rng=auto", "incomplete item ''"),
        (
            "zero3 precision = bf16",
            "items of a plan are separated by commas; write zero3,precision=bf16 in place of 'zero3 prec",
        ),
        ("ddp,rng=auto;", "write rng=auto in place of 'rng=auto;'"),
        ("tensor=two", "tensor=two is not a value of tensor; write a whole number from 1"),
        ("tensor=1_0", "tensor=1_0 is not a value"),
        ("tensor=+1", "tensor=+1 is not a value"),
        ("batch-dim=-1", "batch-dim=-1 is not a value of batch-dim; write a whole number from 0"),
        ("bucket-mb=nan", "bucket-mb=nan is not a value of bucket-mb; write a number above 0"),
        ("bucket-mb=-5", "bucket-mb=-5 is not a value"),
        ("bucket-mb=much", "bucket-mb=much is not a value"),
        ("compile=yes", "compile=yes is not a value of compile; write true or false"),
        ("every=none", "every=none is not a value of every"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_remedy(text: str, message: str):
    with pytest.raises(PlanError) as caught:
        expand(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_unreadable_items_are_told_at_once():
    with pytest.raises(PlanError) as caught:
        Plan.parse("zero4,precison=bf16,tensor=0")
    assert str(caught.value).count("; ") >= 2
    for name in ("'zero4'", "'precison'", "tensor=0"):
        assert name in str(caught.value)


def test_parse_refuses_what_this_version_cannot_run_and_expand_does_not():
    with pytest.raises(PlanError, match="compile=true is not available in this version"):
        Plan.parse("tensor=2,compile=true")
    assert expand("tensor=2,compile=true").compute.compile


def write(folder: Path, text: str) -> str:
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_holds_flat_keys_axis_tables_or_both(tmp_path: Path):
    source = write(
        tmp_path,
        """
        preset = "zero3"
        precision = "bf16"
        compile = true
        data = 2
        [mesh]
        tensor = 2
        [communication]
        bucket-mb = 12.5
        [data]
        rng = "global"
        """.replace("data = 2\n", ""),
    )
    assert expand(source) == expand("zero3,precision=bf16,compile=true,tensor=2,bucket-mb=12.5,rng=global")


def test_a_key_with_the_name_of_an_axis_is_told_from_the_axis_by_its_value(tmp_path: Path):
    assert expand(write(tmp_path, 'data = 2\nstate = "zero1"\nupdate = "sync"')) == expand("zero1,data=2")
    assert expand(write(tmp_path, '[mesh]\ndata = 2\n[data]\nrng = "global"')) == expand("data=2,rng=global")


def test_a_file_may_name_several_presets_and_its_keys_win(tmp_path: Path):
    source = write(tmp_path, 'every = 3\npreset = ["fp16-allreduce", "local-sgd"]')
    assert expand(source) == expand("fp16-allreduce,local-sgd,every=3")


def test_sources_are_one_plan(tmp_path: Path):
    source = write(tmp_path, "bucket-mb = 5")
    assert read_plan(source, "rng=global", ranks=3) == Plan.parse("bucket-mb=5,rng=global")
    assert read_plan() == Plan()
    with pytest.raises(PlanError, match="bucket-mb=5 and bucket-mb=6 contradict"):
        expand(source, "bucket-mb=6")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("preset = 3", "preset = 3 is not a preset"),
        ("preset = ['ddp', 3]", "preset = ['ddp', 3] is not a preset"),
        ("precison = 'bf16'", "unknown key 'precison'"),
        (
            "[comute]\nprecision = 'bf16'",
            "[comute] is not an axis (did you mean compute?); there are mesh, state",
        ),
        ("[mesh]\nprecision = 'bf16'", "precision is not a key of [mesh]; it belongs in [compute]"),
        ("[mesh]\ntensr = 2", "unknown key 'tensr' in a plan (did you mean tensor?)"),
        ("tensor = [2]", "tensor = [2] is not a plan value"),
        ("tensor = 2.0", "tensor=2.0 is not a value of tensor"),
        ("compile = 1", "compile=1 is not a value of compile; write true or false"),
        ("every = 2\n[update]\nevery = 3", "every=2 and every=3 contradict each other"),
        ("tensor = ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_remedy(tmp_path: Path, document: str, message: str):
    with pytest.raises(PlanError) as caught:
        expand(write(tmp_path, document))
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path):
    missing = str(tmp_path / "none.toml")
    with pytest.raises(PlanError, match="cannot be read: No such file or directory") as caught:
        expand(missing)
    assert missing in str(caught.value)
