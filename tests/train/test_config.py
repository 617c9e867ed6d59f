"""Configurations: TOML and YAML mean the same, overrides replace, and every wrong value is one error with a remedy."""

import json
import math
import re
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.signature import hints_of
from lablib.train import TrainConfig, parse_config, read_config, with_overrides
from lablib.train.build import make_loader
from lablib.train.read_config import field_names

TOML = """
num_steps = 20
[model]
d_model = 32
[optimizer]
lr = 1e-3
betas = [0.9, 0.95]
max_norm = inf
"""
YAML = """
num_steps: 20
model: {d_model: 32}
optimizer:
  lr: 1e-3
  betas: [0.9, 0.95]
  max_norm: inf
"""


def test_toml_and_yaml_are_the_same_configuration(tmp_path: Path):
    (tmp_path / "a.toml").write_text(TOML)
    (tmp_path / "a.yaml").write_text(YAML)
    config = read_config(tmp_path / "a.toml")
    assert config == read_config(tmp_path / "a.yaml")
    assert (config.optimizer.lr, config.optimizer.betas, config.model.d_model) == (1e-3, (0.9, 0.95), 32)


def test_overrides_replace_the_file(tmp_path: Path):
    (tmp_path / "a.toml").write_text(TOML)
    overrides = [
        "optimizer.lr=2e-3",
        "model.d_ff = 48",
        "data.corpus=wikitext-2",
        "num_steps=7",
        "memory.recompute=none",
    ]
    config = read_config(tmp_path / "a.toml", overrides)
    assert (config.optimizer.lr, config.model.d_ff, config.data.corpus, config.num_steps) == (2e-3, 48, "wikitext-2", 7)
    assert config.optimizer.betas == (0.9, 0.95)
    assert read_config(tmp_path / "a.toml", ["model.d_ff=4", "model.d_ff=none"]).model.d_ff is None


def leaves() -> list[tuple[str, Any]]:
    """All fields with their defaults."""
    found = []
    for name, value in vars(TrainConfig()).items():
        inner = (
            [(f"{name}.{one.name}", getattr(value, one.name)) for one in fields(value)] if is_dataclass(value) else []
        )
        found += inner or [(name, value)]
    return found


@given(chosen=st.sets(st.sampled_from(leaves()), max_size=20))
def test_defaults_written_as_overrides_change_nothing(chosen):
    texts = [f"{name}={'none' if value is None else written(value)}" for name, value in chosen]
    assert parse_config(with_overrides({}, texts)) == TrainConfig()


def written(value: Any) -> str:
    return str(value) if isinstance(value, float) else json.dumps(value)


@given(
    name=st.sampled_from(field_names()),
    value=st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.booleans()),
)
def test_any_value_gives_a_configuration_or_an_error_that_names_a_field(name: str, value: Any):
    section, _, key = name.rpartition(".")
    tables = {section: {key: value}} if section else {key: value}
    try:
        config = parse_config(tables, "train.toml")
    except ValueError as error:
        text = str(error)
        assert text.startswith("train.toml: ") and "\n" not in text and " must be " in text
        assert (key in text or "num_heads" in text) and ("try " in text or "; " in text)
    else:
        assert parse_config(asdict(config)) == config


@given(name=st.sampled_from([name for name in field_names() if "." in name]), data=st.data())
def test_a_misspelled_field_is_named_with_the_right_one(name: str, data: Any):
    place = data.draw(st.integers(name.index(".") + 1, len(name)))
    wrong = f"{name[:place]}q{name[place:]}"
    with pytest.raises(ValueError, match=f"unknown field '{wrong}': did you mean .*") as error:
        with_overrides({}, [f"{wrong}=1"])
    if len(name) > 8:
        assert name in str(error.value)


def test_a_head_is_tied_by_default_in_a_gpt_and_not_in_a_llama():
    for family, is_tied in (("gpt", True), ("llama", False)):
        text = f"model.family={family}"
        assert parse_config(with_overrides({}, [text])).model.sizes.tied_head == is_tied
        assert (
            parse_config(with_overrides({}, [text, f"model.tied_head={not is_tied}"])).model.sizes.tied_head != is_tied
        )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["lr=1"], "unknown field 'lr': did you mean optimizer.lr?"),
        (["optimizer.lr"], "an override must be name=value: got 'optimizer.lr'; try optimizer.lr=1e-3"),
        (["optimizer.lr=-1"], "optimizer.lr must be a finite number, 0 or more: got -1; try optimizer.lr=0.001"),
        (["optimizer.lr=fast"], "optimizer.lr must be a finite number, 0 or more: got 'fast'; try optimizer.lr=0.001"),
        (["parallel.library=torch", "parallel.zero_stage=1"], "has no stage 1: got 1; try parallel.zero_stage=2"),
        (["parallel.sequence_parallel=true"], "without tensor ranks: got True; try parallel.sequence_parallel=false"),
        (["parallel.num_chunks=2"], "must be 1 without pipeline ranks: got 2; try parallel.num_chunks=1"),
        (["precision.products=bf16"], "must be one of float32, bfloat16, float16: got 'bf16'; did you mean 'bfloat16'"),
        (
            ["precision.products=float16", "precision.initial_scale=1e9"],
            "from min_scale=0 to max_scale=1.67772e+07: got",
        ),
        (["health.warm_up=200"], "health.warm_up must be at most health.window=100: got 200; try health.warm_up=100"),
        (["data.seq_len=256"], "data.seq_len must be at most model.max_seq_len=128: got 256"),
        (["optimizer.schedule=cosine", "optimizer.num_warmup=120"], "try optimizer.num_warmup=100"),
        (["optimizer.schedule=wsd", "optimizer.num_decay=120"], "at most the 100 steps of the schedule: got 120; try"),
        (["parallel.pipeline=2", "parallel.zero_stage=2"], "parallel.zero_stage must be 0 or 1 with pipeline ranks"),
        (["parallel.expert=2", "model.num_experts=3"], "model.num_experts must be a multiple of 2 expert ranks: got 3"),
        (["parallel.expert=2", "model.num_experts=4", "parallel.library=torch"], "try parallel.library=lablib"),
        (["precision.master=true"], "precision.master must be false without a ZeRO stage"),
        (["optimizer.fused=true", "optimizer.name=lion"], "optimizer.fused must be false for lion"),
        (["model.num_kv_heads=2"], 'model.num_kv_heads must be none without model.family="llama": got 2; try'),
        (["model.head_dim=8"], 'model.head_dim must be none without model.family="llama": got 8; try'),
        (["model.rope_base=100.0"], 'model.rope_base must be none without model.family="llama": got 100.0; try'),
        (["model.family=llama", "model.num_kv_heads=3"], "num_heads must be a multiple of num_kv_heads: got 4 and 3"),
        (["model.family=lama"], "model.family must be one of gpt, llama: got 'lama'; did you mean 'llama'"),
        (["model.num_heads=7"], "d_model must be a multiple of num_heads: got 64 and 7; try 63"),
    ],
)
def test_an_error_has_rule_value_and_remedy(overrides, message):
    with pytest.raises(ValueError) as error:
        parse_config(with_overrides({}, overrides))
    assert message in str(error.value)


@given(
    batch=st.integers(1, 64),
    data=st.none() | st.integers(1, 6),
    micro=st.none() | st.integers(1, 8),
    tensor=st.integers(1, 3),
    ranks=st.integers(1, 12),
)
def test_sizes_on_ranks_multiply_to_the_batch_or_the_error_names_a_batch_that_does(batch, data, micro, tensor, ranks):
    tables = {"data": {"batch_size": batch, "micro_batch": micro}, "parallel": {"data": data, "tensor": tensor}}
    try:
        config = parse_config(tables).on(ranks)
    except ValueError as error:
        assert " must be " in str(error)
        if "try data.batch_size=" in str(error):
            tables["data"]["batch_size"] = int(str(error).rpartition("=")[2])
            parse_config(tables).on(ranks)
        return
    assert config.parallel.data is not None and config.data.micro_batch is not None
    assert config.parallel.data * tensor == ranks
    assert config.data.batch_size % (config.parallel.data * config.data.micro_batch) == 0
    assert config.on(ranks) == config


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{}", "must be a .toml, .yaml or .yml file"),
        ("a.toml", "lr =", "must be TOML"),
        ("a.yaml", "a: [", "must be YAML"),
        ("a.yaml", "3", "must have named fields: got 3"),
        ("a.yaml", "!!python/object/apply:os.getcwd []", "must be YAML"),
        ("a.toml", "optimizer = 3", "optimizer must be a table of fields: got 3"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path / name)


REMEDY = re.compile(r"try ([a-z_.]+=.*)$")


@given(name=st.sampled_from(field_names()), text=st.sampled_from(["-3", "x", "[0.5]", "[1, 2, 3]", "1e400", "{}", ""]))
def test_a_remedy_can_be_pasted_as_an_override(name: str, text: str):
    try:
        parse_config(with_overrides({}, [f"{name}={text}"]))
    except ValueError as error:
        if found := REMEDY.search(str(error)):
            parse_config(with_overrides({}, [found[1]]))


@given(name=st.sampled_from(["memory.compile", "optimizer.fused", "model.tied_head"]), value=st.booleans())
def test_true_and_false_are_read_as_python_writes_them(name: str, value: bool):
    read = parse_config(with_overrides({}, [f"{name}={value}", "data.micro_batch=None"]))
    assert read == parse_config(with_overrides({}, [f"{name}={str(value).lower()}", 'data.micro_batch="none"']))


@given(tensor=st.integers(1, 9), ranks=st.integers(1, 40))
def test_axes_that_do_not_fit_the_ranks_name_a_number_of_ranks_that_does(tensor: int, ranks: int):
    config = parse_config(
        with_overrides({}, [f"parallel.tensor={tensor}", f"data.batch_size={math.lcm(*range(1, 41))}"])
    )
    try:
        config.on(ranks)
    except ValueError as error:
        if fit := re.search(r"run on (\d+) ranks", str(error)):
            config.on(int(fit[1]))


@given(size=st.integers(1, 255))
def test_bytes_need_a_vocabulary_of_256(size: int):
    with pytest.raises(ValueError, match=f"model.vocab_size must be a whole number, 256 or more: got {size}"):
        make_loader(parse_config(with_overrides({}, [f"model.vocab_size={size}"])).on(1))


def test_every_field_has_a_bound_or_a_type_and_is_known_to_overrides():
    assert len(field_names()) == len(leaves()) == len(set(field_names()))
    assert all(hints_of(type(value)) for value in vars(TrainConfig()).values() if is_dataclass(value))
