"""The closed forms of ZeRO: as the paper prints them, and to the byte what the simulator's memory and traffic say."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lablib import launch
from lablib.parallel import DataParallel, FlatLayout, Zero
from lablib.parallel.zero import bytes

few = settings(max_examples=10, deadline=None)


@given(share=st.integers(1, 10**9), ranks=st.integers(1, 1024), stage=st.integers(1, 3))
def test_bytes_are_those_of_the_papers_table(share, ranks, stage):
    """Rajbhandari et al., 2019, section 5: 2 + 2 + 12 bytes, of which stages 1, 2 and 3 split 12, 14 and 16."""
    split = {1: 12, 2: 14, 3: 16}[stage]
    assert bytes.zero_bytes(stage, [share * ranks], ranks).total == share * (split + ranks * (16 - split))


def test_plain_data_parallelism_holds_16_bytes_a_parameter_with_mixed_precision():
    assert bytes.zero_bytes(0, [1000], 64).total == 16_000 == 1000 * bytes.MIXED.total
    assert [one.total for one in (bytes.FP32, bytes.MIXED, bytes.MIXED_FP32_GRADIENTS, bytes.BF16)] == [16, 16, 18, 8]


@given(
    numels=st.lists(st.integers(0, 10_000), min_size=1, max_size=5),
    ranks=st.integers(1, 100),
    multiple=st.integers(1, 64),
)
def test_stages_hold_less_and_less_and_padding_is_less_than_a_multiple_a_rank(numels, ranks, multiple):
    held = [bytes.zero_bytes(s, numels, ranks, multiple_of=multiple).total for s in (1, 2, 3)]
    assert held == sorted(held, reverse=True)
    sharded = bytes.zero_bytes(3, numels, ranks, multiple_of=multiple).total * ranks
    assert 0 <= sharded - 16 * sum(numels) < 16 * len(numels) * ranks * multiple


@given(numel=st.integers(1, 500), ranks=st.integers(1, 12), multiple=st.integers(1, 9))
def test_every_element_lies_on_one_shard(numel, ranks, multiple):
    sizes = (numel // 2, numel - numel // 2)
    layout = FlatLayout(("a", "b"), ((sizes[0],), (sizes[1], 1)), ranks, multiple)
    assert layout.shard_numel % multiple == 0
    seen = {"a": [], "b": []}
    for rank in range(ranks):
        pieces = layout.pieces(rank)
        left = max(numel - rank * layout.shard_numel, 0)
        assert sum(piece.numel for piece in pieces) == min(left, layout.shard_numel)
        for piece in pieces:
            assert piece.start_in_shard + piece.numel <= layout.shard_numel
            seen[piece.name] += range(piece.start_in_param, piece.start_in_param + piece.numel)
    assert seen == {"a": list(range(sizes[0])), "b": list(range(sizes[1]))}


def test_only_stage_3_has_a_root():
    with pytest.raises(ValueError, match="root_numel is only for stage 3"):
        bytes.zero_sent_bytes(2, [1], 2, root_numel=3)


# ---- as measured ----


def layers(sizes: list[int], dtype: torch.dtype = torch.float32) -> nn.Sequential:
    pairs = zip(sizes, sizes[1:], strict=False)
    return nn.Sequential(*(nn.Linear(a, b, dtype=dtype) for a, b in pairs))


def train(stage: int, sizes: list[int], dtype: torch.dtype, options: dict, num_frozen: int) -> list[int]:
    """Two steps, and a backward before a barrier; the elements of each unit that trains."""
    module = layers(sizes, dtype)
    if num_frozen:
        module[0].weight.requires_grad_(False)  # no name for it: what a program holds is not freed
    zero = Zero(module, torch.optim.AdamW, stage, **options)
    x = torch.ones(2, sizes[0], dtype=options.get("param_dtype") or dtype)
    for step in range(3):
        zero(x).square().mean().backward()
        if step < 2:
            zero.step()
            zero.zero_grad()
    dist.barrier()
    x + 1  # later than the barrier: all is held until here
    return [unit.layout.numel for unit in zero.units if unit.is_trainable]


PRECISIONS = {
    "fp32": (torch.float32, {}, bytes.FP32),
    "bf16": (torch.bfloat16, {}, bytes.BF16),
    "mixed": (torch.float32, {"param_dtype": torch.bfloat16}, bytes.MIXED),
    "mixed, fp32 gradients": (
        torch.float32,
        {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32},
        bytes.MIXED_FP32_GRADIENTS,
    ),
}


@few
@given(
    stage=st.integers(1, 3),
    ranks=st.integers(1, 5),
    precision=st.sampled_from(list(PRECISIONS)),
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    bucket_bytes=st.sampled_from([1, 100, 10_000]),
    num_frozen=st.integers(0, 1),
)
def test_memory_at_rest_is_the_closed_form_to_the_byte(stage, ranks, precision, sizes, bucket_bytes, num_frozen):
    dtype, options, closed_form = PRECISIONS[precision]
    options = options if stage == 3 else options | {"bucket_bytes": bucket_bytes}
    run = launch(partial(train, stage, sizes, dtype, options, num_frozen), ranks=ranks)
    barrier = next(t for t in run.traffic.transfers if t.name == "barrier")
    frozen = [sizes[0] * sizes[1]] if num_frozen else []
    counted = bytes.TrainingPrecision(
        *(getattr(closed_form, name) for name in closed_form.__slots__[:4]), step_counter=4
    )
    expected = bytes.zero_bytes(stage, run.values[0], ranks, counted, frozen_numels=frozen)
    for rank in range(ranks):
        held = run.memory.at(rank, barrier.start_s)
        assert held["gradient"] == expected.gradient
        assert held["parameter"] == expected.parameter + expected.master
        assert held["optimizer state"] == expected.state
        assert held["communication"] == held["activation"] == 0


@few
@given(
    stage=st.integers(0, 3),
    ranks=st.integers(2, 5),
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    num_micro_batches=st.integers(1, 3),
    no_sync=st.booleans(),
    reshard=st.booleans(),
)
def test_traffic_of_a_step_is_the_closed_form_to_the_byte(stage, ranks, sizes, num_micro_batches, no_sync, reshard):
    no_sync |= stage < 2

    def program():
        module = layers(sizes, torch.float64)
        options: dict[str, Any] = {"reshard_after_forward": reshard} if stage == 3 else {"bucket_bytes": 300}
        zero = Zero(module, torch.optim.SGD, stage, **options) if stage else DataParallel(module, bucket_bytes=300)
        for micro_batch in range(num_micro_batches):
            is_last = micro_batch == num_micro_batches - 1
            if no_sync and not is_last:
                with zero.no_sync():
                    zero(torch.ones(1, sizes[0], dtype=torch.float64)).sum().backward()
            else:
                zero(torch.ones(1, sizes[0], dtype=torch.float64)).sum().backward()
        if isinstance(zero, Zero):
            zero.step()
            return [unit.layout.numel for unit in zero.units]
        return [sum(param.numel() for param in bucket) for bucket in zero.buckets]

    run = launch(program, ranks=ranks)
    expected = bytes.zero_sent_bytes(
        stage,
        run.values[0],
        ranks,
        bytes.TrainingPrecision(8, 8, 0, 0),
        num_micro_batches=num_micro_batches,
        no_sync=no_sync,
        reshard_after_forward=reshard,
    )
    sent = [transfer for transfer in run.traffic.transfers if transfer.name != "broadcast"]
    total = sum(sum(transfer.sent_bytes) for transfer in sent)
    if stage == 0:  # an all-reduce does not pad
        numel = sum(run.values[0])
        assert total == pytest.approx(2 * (ranks - 1) * numel * 8)
    else:
        assert total == pytest.approx(ranks * expected)
