"""docs/settings.md: numbers of the planner and of the allocator's model, names of torch and of `lab doctor`."""

import inspect
import re
from functools import cache
from math import inf
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, ShardingStrategy, fully_shard

from lablib import launch
from lablib.course.running.doctor_settings import SETTINGS
from lablib.record.allocator_settings import OPTIONS, AllocatorSettings
from lablib.studies import RunNumbers, kept_thresholds, run_numbers
from tests.operators.test_efficiency import _STEPS, _train

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text("utf-8")
MODELS = {
    "GPT-2": ("gpt2", 2**19, 1024),
    "Llama 2 7B": ("llama-2-7b", 2**22, 4096),
    "Llama 3 70B": ("llama-3-70b", 2**22, 8192),
}


def rows(heading: str) -> list[list[str]]:
    """The cells of each row of the table whose header begins with a text."""
    table = PAGE.split(f"| {heading}", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


@cache
def planned(name: str, gpus: int) -> RunNumbers | None:
    model, batch_tokens, seq_len = MODELS[name]
    return run_numbers(model, "dgx-h100", gpus, batch_tokens, seq_len)


def cells(name: str, gpus: int, fewest: int) -> list[str]:
    numbers, first = planned(name, gpus), planned(name, fewest)
    if numbers is None or first is None:
        return ["no plan fits", *[""] * 7]
    slower = [f"{ratio:.2f} times" if ratio < inf else "no plan fits" for ratio in numbers.slowdown_at.values()]
    return [
        f"{numbers.tokens_per_s:,.0f}",
        f"{numbers.tokens_per_gpu_s:,.0f}",
        f"{numbers.step_s:.3g} s",
        f"{numbers.peak_bytes / 1e9:.1f} GB",
        f"{numbers.growth_bytes / 1e9:.1f} GB",
        f"{numbers.scaling(first):.2f}",
        *slower,
    ]


TABLE = [
    *(("GPT-2", gpus, 1) for gpus in (1, 8, 64)),
    *(("Llama 2 7B", gpus, 8) for gpus in (1, 8, 64)),
    *(("Llama 3 70B", gpus, 32) for gpus in (8, 32, 64)),
]


def test_the_table_of_thresholds_is_the_planners():
    expected = [[name, str(gpus), *cells(name, gpus, fewest)] for name, gpus, fewest in TABLE]
    assert rows("model | GPUs") == expected


def test_the_judgements_follow_from_the_table():
    kept = {(name, gpus): kept_thresholds(found) for name, gpus, _ in TABLE if (found := planned(name, gpus))}
    assert all(one["tokens/s >= 1000"] for one in kept.values())
    broken = {name for (name, _), one in kept.items() if not one["growth <= 8 GB"]}
    assert broken == set(MODELS)
    gpt, seven, seventy = planned("GPT-2", 1), planned("Llama 2 7B", 64), planned("Llama 3 70B", 64)
    assert gpt is not None and seven is not None and seventy is not None
    assert f"{1000 / gpt.tokens_per_gpu_s:.1%}" in PAGE and seventy.tokens_per_gpu_s == pytest.approx(1000, rel=0.05)
    assert f"takes {seven.step_s:.1f} s on 64 GPUs" in PAGE
    eight = planned("Llama 2 7B", 8)
    assert eight is not None
    for numbers in (eight, seventy):
        shown = " and ".join(f"{ratio - 1:.0%}" for ratio in numbers.slowdown_at.values())
        assert shown in PAGE
    many = planned("GPT-2", 64)
    assert many is not None and f"on 64 GPUs has {many.scaling(gpt):.2f}" in PAGE
    assert kept_thresholds(many, gpt)["scaling >= 0.8"] is False


def test_a_batch_of_parts_of_sequences_is_refused_and_a_model_that_does_not_fit_has_no_plan():
    with pytest.raises(ValueError, match="must be a multiple of seq_len: got 1,000 and 1,024; try 1,024"):
        run_numbers("gpt2", "dgx-h100", 1, 1000, 1024)
    assert planned("Llama 2 7B", 1) is None


def test_the_program_on_the_page_fails_and_is_saved_as_it_says():
    program = PAGE.split("```python\n", 2)[1].split("memory = launch", 1)[0]
    scope: dict = {"torch": torch}
    exec(compile(program, "page", "exec"), scope)
    memory = launch(scope["run_with_results"], ranks=1).memory
    replays = {text: memory.replay_allocator(text, capacity_bytes=140 * 2**20) for text in ("", *SAVED)}
    failed = replays[""].out_of_memory
    assert failed is not None and failed.reserved_bytes == 5 * 24 * 2**20
    outside = failed.capacity_bytes - failed.reserved_bytes
    sizes = [
        failed.size_bytes,
        failed.capacity_bytes - failed.allocated_bytes,
        max(outside, failed.largest_cached_bytes),
    ]
    first, *others = rows("settings, on 140 MiB")
    assert re.findall(r"([\d.]+) MB", first[1]) == [f"{size / 1e6:.3g}" for size in sizes]
    for text, (name, shown) in zip(SAVED, others, strict=True):
        assert name == f"`{text}`" and replays[text].out_of_memory is None
        assert shown == f"at most {replays[text].peak_reserved_bytes / 1e6:.0f} MB reserved"


SAVED = ("max_split_size_mb:20", "expandable_segments:True")


def test_reserved_memory_of_steps_is_as_the_page_says():
    shown, errors = [], []
    for tag in ("small eager", "big eager", "small eager fused", "small eager B4"):
        memory = launch(_train, _STEPS[tag], ranks=1, cluster="hgx-h200", fidelity="shapes").memory
        replays = [memory.replay_allocator(text, capacity_bytes=141e9) for text in ("", "expandable_segments:True")]
        errors.append(_STEPS[tag]["peak_bytes"] / replays[0].peak_allocated_bytes - 1)
        shown += [f"{replay.peak_reserved_bytes / 1e9:.1f}" for replay in replays]
    text = " ".join(PAGE.split("is not always smaller", 1)[1].split("\n\n", 1)[0].replace("*", "").split())
    assert f"{shown[0]} GB reserved by default and {shown[1]} GB expandable" in text
    assert f"{shown[2]} and {shown[3]} GB" in text
    assert f"{100 * min(errors):.1f} to {max(errors):.1%} above" in text


def test_each_option_of_the_allocator_is_one_that_is_read():
    for name, *_ in rows("`PYTORCH_ALLOC_CONF` | effect"):
        AllocatorSettings.parse(name.strip("`"))
        assert name.strip("`").split(":")[0] in OPTIONS


def test_each_variable_is_known_to_the_doctor():
    names = set(re.findall(r"\b(?:NCCL|GLOO|TORCH_NCCL|TORCH_DISTRIBUTED|CUDA|CUBLAS|PYTORCH)_[A-Z_0-9]+\b", PAGE))
    assert len(names) > 15 and names <= set(SETTINGS)
    assert not any(SETTINGS[name].replaced_by for name in names)


def test_each_option_of_fsdp_is_torchs():
    fsdp1 = {*inspect.signature(FullyShardedDataParallel.__init__).parameters, *ShardingStrategy.__members__}
    fsdp1 |= {"BACKWARD_PRE", "BACKWARD_POST", "no_sync", "transformer_auto_wrap_policy", "size_based_auto_wrap_policy"}
    fsdp2 = {*inspect.signature(fully_shard).parameters, *dir(FSDPModule)}
    for one, two, _ in rows("FSDP1"):
        names = [re.split(r"[(=]", name)[0] for name in re.findall(r"`([^`]+)`", one)]
        assert names and set(names) <= fsdp1, names
        assert {re.split(r"[(=]", name)[0] for name in re.findall(r"`([^`]+)`", two)} <= fsdp2 | {
            "meta",
            "True",
            "False",
        }
    required = {"backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params", "auto_wrap_policy"}
    assert all(f"`{name}`" in PAGE for name in required)
