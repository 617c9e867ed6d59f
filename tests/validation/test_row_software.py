"""The software of a row follows from its name, notes, date or device, and the published rows say which it was."""

from dataclasses import replace

import pytest

from lablib.validation.conditions import CONDITIONS_HEADING, condition_lines, refused_lines, with_default_software
from lablib.validation.cross_validate import HeldOut
from lablib.validation.machine import cluster_of
from lablib.validation.row_software import software_of
from lablib.validation.rows import PublishedRow
from lablib.validation.score import score

A_PAGE = {"source.title": "a page", "source.url": "https://example.org/page"}


def found(row: PublishedRow) -> tuple[str, str]:
    software = software_of(row, cluster_of(row))
    return software.name, software.basis


def test_each_published_row_says_how_its_software_is_known(published, mixtures):
    for row in (*published, *mixtures):
        texts = dict(row.texts)
        said, basis = texts.pop("software"), found(row)[1]
        assert (said == basis) == (basis != "named"), row.id
        assert found(replace(row, texts=texts)) == found(row), f"{row.id}: the rule differs without the field"


@pytest.mark.parametrize(
    ("changes", "name", "basis"),
    [
        ({"stack": "torch"}, "torch", "named"),
        ({"software": "torchtitan", "notes": "compile"}, "torch-compile", "named"),
        ({"notes": "Megatron-DeepSpeed, ZeRO-1"}, "megatron-deepspeed", "named"),
        ({"notes": "llm-foundry of that month"}, "fsdp-flash", "named"),
        ({"notes": "FSDP with torch.compile", "date": "2024-03"}, "torch-compile-2024", "named"),
        ({"notes": "eager mode"}, "fsdp", "named"),
        ({"notes": "Hugging Face Trainer"}, "transformers", "named"),
        ({"notes": "Hugging Face Trainer", "date": "2022"}, "transformers-2022", "named"),
        ({"notes": "Hugging Face with DeepSpeed"}, "transformers-deepspeed", "named"),
        ({"notes": "Hugging Face with Transformer Engine's layers"}, "transformers-te", "named"),
        ({"notes": "MaxText"}, "xla", "named"),
        ({"notes": "JAX, no flash attention"}, "xla-2023", "named"),
        ({"notes": "XTuner"}, "internevo", "named"),
        ({"notes": "torchtune, eager"}, "fsdp", "named"),
        (
            {"notes": "as fast as measured by the FlashAttention authors", "date": "2022"},
            "megatron-2022",
            "deduced by C5c",
        ),
        ({"notes": "eager, without flash attention"}, "transformers-2022", "named"),
        ({"notes": "eager, FSDP", "date": "2022-03-14"}, "transformers-2022", "named"),
        ({"notes": "eager attention"}, "torch-compile", "unknown"),
        ({"notes": "NeMo 24.05"}, "megatron-core", "named"),
        ({"notes": "Nemotron"}, "torch-compile", "unknown"),
        ({"notes": "20% faster than Megatron-DeepSpeed"}, "torch-compile", "unknown"),
        ({"notes": "TFLOPs use the Megatron formula"}, "torch-compile", "unknown"),
        ({"notes": "Megatron-LM of 2021"}, "megatron-2021", "deduced by C5c"),
        ({"notes": "Megatron-LM", "date": "2022-06"}, "megatron-2022", "deduced by C5c"),
        ({"notes": "measured in 2022, with FlashAttention"}, "fsdp", "deduced by C5c"),
        ({"notes": "without flash attention", "date": "2024"}, "megatron-2022", "deduced by C5c"),
        ({"notes": "Megatron-LM", "hardware.gpu": "H100"}, "megatron-core", "deduced by C5d"),
        ({"date": "2022", "hardware.gpu": "H100"}, "fsdp", "deduced by C5c"),
        ({}, "torch-compile", "unknown"),
    ],
)
def test_software_is_named_or_deduced_or_unknown(row, changes, name, basis):
    assert found(row({**A_PAGE, "precision": "bf16", **changes})) == (name, basis)


def test_one_default_is_the_software_of_a_plan_that_names_none(published, fixed):
    changed = with_default_software(published)
    assert {found(row)[0] for row in changed} == {"megatron-core"}
    assert [row.measured for row in changed] == [row.measured for row in published]


def test_conditions_are_lines_and_refused_rows_are_counted_by_reason(row, fixed):
    rows = [row(), row({"id": "mine-two", **A_PAGE}), row({"id": "mine-b", "parallel.dp": 4})]
    rows += [row({"id": "mine-c", "parallel.dp": 8}), row({"id": "mine-d", "hardware.gpu": "H1000"})]
    report = score(rows, lambda **_: fixed(4.4))
    default = score(with_default_software(rows), lambda **_: fixed(5.0))
    lines = condition_lines(report, default, [HeldOut("a", 1, 0, 0, 9.0, {}), HeldOut("b", 3, 0, 0, 5.0, {})], [])
    by_name = {line[0]: line[1:] for line in lines}
    assert by_name["software of the row (rule C5)"] == ("5", "64.0%", "100.0%", "-56.0%", "100.0%", "3")
    for basis in ("deduced by C5c", "unknown"):
        assert by_name[f"of these, {basis}"] == ("1", "10.0%", "10.0%", "+10.0%", "10.0%", "0")
    assert by_name["one default for all"] == ("5", "70.0%", "100.0%", "-50.0%", "100.0%", "3")
    assert by_name["constants fitted without the row's source"] == ("4", "6.0%", "", "", "", "")
    assert all(len(line) == len(CONDITIONS_HEADING) for line in lines)
    assert refused_lines(report.skipped)[0] == ("dp x tp x pp x cp must be the number of GPUs", "2")
    assert sum(int(count) for _, count in refused_lines(report.skipped)) == 3
