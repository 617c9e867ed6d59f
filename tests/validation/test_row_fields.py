"""Every field that a row may hold changes what is said of it, is refused, or is one of the labels: none is ignored."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.plan import predict
from lablib.validation import rows
from lablib.validation.case import cases_of
from lablib.validation.fields import ANY, COUNT, FIELDS, FLAG, LABELS, NUMBER, TEXT, path_of
from lablib.validation.row_software import software_of, year_of
from lablib.validation.rows import PublishedRow, parse_rows
from lablib.validation.score import prepare
from lablib.validation.software import offload_of, optimizer_of
from tests.validation.conftest import change

EXPERTS = {
    **{"model.experts": 8, "model.experts_per_token": 2, "model.expert_ffn": 14336, "model.name": "Mixtral 8x7B"},
    **{"parallel.ep": 2, "hardware.gpu": "H100", "model.shared_experts": 1, "model.dense_layers": 1},
}
BASES: tuple[dict[str, Any], ...] = (
    {},
    {"batch.micro": None, "recompute": None},
    {"hardware.gpus": 16, "parallel.dp": 4},
    {"parallel.tp": 1, "parallel.dp": 4, "parallel.pp": 2, "schedule": "interleaved", "hardware.interconnect": "RoCE"},
    {"hardware.gpu": "H100", "parallel.fsdp": "FULL_SHARD", "batch.global": None, "batch.local": 32},
    {"measured.iteration_s": None, "measured.model_tflops_per_gpu": 150.0, "measured.memory_gb_per_gpu": 40.0},
    {"model.ffn": 11008, "model.name": "Llama 2 7B", "model.vocab": 32000, "model.params": 6738415616},
    EXPERTS,
    EXPERTS | {"dispatcher": "alltoall"},
)
TEXTS = {
    "attention_flops": ["causal"],
    "date": ["2024-06", "2019"],
    "dispatcher": ["deepep"],
    "notes": ["LoRA"],
    "optimizer": ["Lion", "no such"],
    "precision": ["fp32", "fp8"],
    "recompute": ["none", "selective"],
    "schedule": ["gpipe", "zb-h1"],
    "software": ["Megatron-DeepSpeed"],
    "stack": ["torch-compile", "no such"],
    "model.name": ["Llama 3 8B"],
    "hardware.gpu": ["V100", "H100"],
    "hardware.interconnect": ["10 Gb/s Ethernet"],
    "parallel.offload": ["optimizer", "activations", "no such"],
    "parallel.fsdp": ["SHARD_GRAD_OP", 4],
    "source.title": ["DeepSpeed, Megatron", "torchtitan, compile"],
    "source.url": ["https://example.org/torchtitan/2025-06"],
    "id": ["other-one", 3],
    "scorable": [False],
    "model.params_b": ["8b", 70, "x"],
}


def values_of(path: str, kind: str) -> list[Any]:
    """Values to try in a field."""
    if path in TEXTS:
        return TEXTS[path]
    more = {
        COUNT: [1, 2, 3, 5, 8, 16],
        NUMBER: [0.3, 0.5, 7, 100, 1e9],
        FLAG: [True, False],
        TEXT: ["word"],
        ANY: ["x"],
    }
    return more[kind]


@cache
def answer_of(line: str) -> Any:
    """All that is said of a row: predictions, what was measured, the software; or why it is refused."""
    try:
        (row,) = parse_rows([line])
        ready, skipped = prepare([row])
        if skipped:
            return skipped[0].reason
        predicted = [predict(**case.arguments()) for case in ready[0].cases]
        times = [(each.step_time_s, each.peak_memory_bytes, each.model_flops) for each in predicted]
        return row.id, times, ready[0].measured, str(software_of(row, ready[0].cases[0].cluster))
    except ValueError as error:
        return str(error)


ALL = [(section, key) for section, fields in FIELDS.items() for key in fields]


@pytest.mark.parametrize(("section", "key"), ALL, ids=[path_of(*each) for each in ALL])
def test_a_field_changes_the_answer_or_is_refused_or_is_a_label(section, key, line):
    path = path_of(section, key)
    lines = (json.loads(line(base)) for base in BASES)
    has_changed = any(
        answer_of(json.dumps(change(before, {path: value}))) != answer_of(json.dumps(before))
        for before in lines
        for value in values_of(path, FIELDS[section][key].kind)
    )
    assert has_changed == (path not in LABELS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_value_in_any_field_of_a_published_row_is_answered_or_refused(data):
    lines = published_lines()
    record = json.loads(data.draw(st.sampled_from(lines)))
    section, key = data.draw(st.sampled_from(ALL))
    values = JSON | st.sampled_from(values_of(path_of(section, key), FIELDS[section][key].kind)) | st.integers(1, 64)
    answer = answer_of(json.dumps(change(record, {path_of(section, key): data.draw(values)})))
    assert answer  # a reason in words, or numbers: nothing else is raised


def published_lines() -> list[str]:
    folder = Path(rows.__file__).parent
    files = ("published_runs.jsonl", "published_moe_runs.jsonl")
    return [line for name in files for line in (folder / name).read_text("utf-8").splitlines()[::7]]


def test_published_rows_are_read_to_the_last_field(published, mixtures):
    assert not [row.id for row in (*published, *mixtures) if row.unused]
    labels = {path for path in LABELS if "." not in path}
    assert labels <= set(FIELDS[""]) and {"hardware.cluster"} == set(LABELS) - labels


def test_what_the_host_keeps_is_modelled_or_refused(row):
    assert offload_of(row()) == () == offload_of(row({"parallel.offload": "none"}))
    (case,) = cases_of(row({"parallel.offload": "optimizer states, activations"}))
    assert case.offload == ("optimizer", "activations")
    with pytest.raises(
        ValueError, match="parallel.offload must name optimizer or activations or parameters: got 'nvme'"
    ):
        cases_of(row({"parallel.offload": "nvme"}))


def test_an_optimizer_nobody_knows_is_refused(row):
    names = {"AdamW (fused)": "adamw", "adam_8bit": "adam-8bit", "SGD": "sgd", "Adafactor": "adafactor"}
    names |= {
        "FusedAdam": "adam",
        "paged_adamw_8bit": "adam-8bit",
        "8-bit Adam": "adam-8bit",
        "DeepSpeedCPUAdam": "adam",
    }
    for text in ("NAdam", "Adamax", "Adam-mini", "for a million steps", "Lambda"):
        with pytest.raises(ValueError, match="optimizer must name one of"):
            optimizer_of(row({"optimizer": text}))
    assert {text: optimizer_of(row({"optimizer": text})) for text in names} == names
    with pytest.raises(ValueError, match="optimizer must name one of .*: got 'SOAP'"):
        optimizer_of(row({"optimizer": "SOAP"}))
    assert optimizer_of(row({"optimizer": "Muon, AdamW for embeddings"})) == "muon"
    assert optimizer_of(row({"optimizer": "AdamW (not Muon)"})) == "adamw"


@pytest.mark.parametrize(
    ("source", "year"),
    [
        ({"source.title": "arXiv:2304.11277 figure 7"}, 2023),
        ({"source.title": "a page", "source.url": "https://arxiv.org/abs/1910.02054"}, 2019),
        ({"source.title": "Megatron, April 2021"}, 2021),
        ({"source.title": "vTrain, MICRO-57 2024, arXiv:2312.12391"}, 2024),
        ({"source.title": "benchmarks 202412"}, 2024),
        ({"source.title": "commit 2024123456, 20 GPUs"}, None),
        ({"source.title": "Megatron, April 2021", "date": "2023-06"}, 2023),
    ],
)
def test_the_year_of_a_row_is_its_date_or_the_latest_of_its_source(row, source, year):
    assert year_of(row(source)) == year


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"source.title": "a blog", "date": "2023-06"}, "fsdp"),
        ({"source.title": "a blog"}, "torch-compile"),  # Megatron of 2021 before, with unfused attention
        ({"source.title": "Megatron-LM, README"}, "megatron-core"),
        ({"source.title": "a blog of 2022"}, "megatron-2022"),
        ({"source.title": "", "source.url": ""}, "megatron-core"),
        ({"source.title": "a blog", "stack": "torch"}, "torch"),
    ],
)
def test_software_that_is_not_known_is_that_of_the_date(row, changes, name):
    (software,) = {software_of(row(changes), case.cluster).name for case in cases_of(row(changes))}
    assert software == name


def test_every_row_of_a_report_says_its_software(published):
    from lablib.validation.score import score
    from lablib.validation.tables import worst_lines

    report = score(published[:3], predict)
    assert set(report.to_json()["software"].values()) == {"megatron-deepspeed (DeepSpeed's)"}
    assert all(line[-1] == "megatron-deepspeed (DeepSpeed's)" for line in worst_lines(report, 3))


def test_counts_that_are_stated_twice_agree(line):
    for changes, said in (
        ({"parallel.model_parallel": 8}, "model_parallel: must be tp x pp: got 8 and 4 x 1"),
        ({"hardware.nodes": 2}, "hardware.nodes: must be gpus / gpus_per_node: got 2 and 8 / 8"),
        ({"hardware.nodes": 9, "hardware.gpus_per_node": None}, "hardware.nodes: must be hardware.gpus or fewer"),
    ):
        with pytest.raises(ValueError, match=said):
            parse_rows([line(changes)])
    fewer: PublishedRow = parse_rows([line({"hardware.nodes": 2, "hardware.gpus_per_node": None})])[0]
    assert cases_of(fewer)[0].cluster.devices_per_node == 4
