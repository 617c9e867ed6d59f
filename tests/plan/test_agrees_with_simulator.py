"""The planner against the simulator that runs the same step: time within 5%, memory of every stage within 2%.

Seconds of communication agree within 5%, axis by axis.

The programs are plain torch.distributed and know nothing of either; the planner is asked for the stack that describes
them, without what real machines lose. Both read lablib/cost: what is compared is which operators run and when, which
tensors live and when.
"""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import launch
from lablib.models.llama_sizes import LlamaConfig
from lablib.models.sizes import GPTConfig
from lablib.models.transformer import Transformer
from lablib.plan import IDEAL, STACKS, Parallel, predict
from lablib.process.replaced import replaced
from lablib.script import simulate_script
from lablib.sim import simulation
from tests.plan.agreement import agrees, agrees_on_communication, thorough
from tests.plan.gpt_step import OPTIMIZERS, Job, predicted, train
from tests.plan.tensor_step import gpt3

# ---- tensor and pipeline parallel: benchmarks/gpt3_step.py ----


def pipeline(cluster: str, tensor: int, stages: int, micro_batches: int, **config: Any) -> None:
    config = {"layers": stages, "vocab": 8192, "seq": 1024, "micro_batch": 1, "recompute": True} | config
    config = {"heads": config["hidden"] // 128} | config
    program = partial(gpt3.step, config, tensor, stages, micro_batches)
    run = launch(program, ranks=tensor * stages, cluster=cluster, fidelity="shapes")
    sizes = (config["layers"], config["hidden"], config["heads"], config["vocab"], config["seq"])
    prediction = predict(
        Transformer("gpt", *sizes, tied_head=False),
        cluster,
        Parallel(tensor=tensor, pipeline=stages, sequence_parallel=False),
        batch=micro_batches * config["micro_batch"],
        micro_batch=config["micro_batch"],
        recompute="full" if config["recompute"] else "none",
        stack="torch-megatron",
        derating=IDEAL,
    )
    ranks = [stage * tensor for stage in range(stages)]
    agrees(run, prediction, ranks)
    agrees_on_communication(run, prediction, ranks, "tensor", has_exposed=stages == 1)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 4, thorough(12)])
def test_a_pipeline_of_few_and_of_many_micro_batches(micro_batches, recompute):
    sizes = {"hidden": 512, "layers": 4, "seq": 2048, "micro_batch": 4, "recompute": recompute}
    pipeline("dgx-a100", 2, 4, micro_batches, **sizes)


@pytest.mark.parametrize(
    ("cluster", "tensor", "stages", "micro_batches", "sizes"),
    [
        pytest.param("dgx-h100", 4, 2, 2, {"hidden": 4096, "vocab": 51200, "seq": 2048}, id="a large layer"),
        pytest.param("dgx-v100", 8, 1, 3, {"hidden": 2048, "layers": 2, "micro_batch": 2}, id="one stage"),
        pytest.param("dgx-a100", 2, 2, 3, {"hidden": 256, "heads": 2, "seq": 64}, id="launches rather than work"),
        pytest.param("dgx-a100", 2, 2, 2, {"hidden": 1024, "vocab": 128000, "recompute": False}, id="a large head"),
        pytest.param("dgx-a100", 4, 4, 8, {"hidden": 2048, "micro_batch": 4}, id="two stages a node"),
        pytest.param(
            "dgx-a100", 8, 3, 3, {"hidden": 2048, "micro_batch": 4, "recompute": False}, id="one stage a node"
        ),
        pytest.param("pcie-a100", 2, 3, 3, {"hidden": 1024, "micro_batch": 2}, id="slow wires"),
        pytest.param("dgx-h100", 1, 2, 2, {"hidden": 384, "heads": 2, "recompute": False}, id="no tensor ranks"),
        pytest.param("dgx-a100", 1, 3, 7, {"hidden": 384, "vocab": 1001, "seq": 255, "micro_batch": 3}, id="odd sizes"),
    ],
)
def test_tensor_and_pipeline_parallel_on_several_clusters(cluster, tensor, stages, micro_batches, sizes):
    pipeline(cluster, tensor, stages, micro_batches, **sizes)


# ---- data parallel: this project's GPT under torch's own wrappers ----


def data_parallel(
    kind: str,
    ranks: int,
    config: GPTConfig | LlamaConfig,
    batch: int,
    micro_batches: int,
    optimizer: str = "adamw",
    dtype: torch.dtype = torch.float32,
    cluster: str = "dgx-a100",
    **how: Any,
) -> None:
    job = Job(config, kind, ranks, batch, micro_batches, optimizer, dtype, cluster, **how)
    # Alone, rank 0 does to the bit what it does among its like (tests/sim/test_phantoms.py), in a quarter of the time.
    # The shards of `_ODD` are uneven, the tensors of "zero1" have owners, and the script below runs all ranks.
    simulate = [0] if kind in ("ddp", "fsdp") and config is not _ODD else None
    # FSDP2 as on a CPU, whose streams have no effect, so that it waits for each communication at once.
    as_on_a_cpu = (simulation, "torch_cpu_streams", nullcontext)
    with replaced(as_on_a_cpu) if kind == "fsdp" else nullcontext():
        run = launch(partial(train, job), ranks=ranks, cluster=cluster, fidelity="shapes", simulate=simulate)
    # How evenly ZeroRedundancyOptimizer packs whole tensors is not predicted; the sum still has to be.
    prediction = predicted(job, overlaps=kind != "fsdp")
    # A Llama's cosines and sines are kept, and "other" to the memory tracker.
    agrees(run, prediction, [0], skipped="states" if kind == "zero1" else "", together=isinstance(config, LlamaConfig))
    agrees_on_communication(run, prediction, [0], "data", has_exposed=True)


_SMALL = GPTConfig(num_layers=2, d_model=1024, num_heads=8, vocab_size=8192, max_seq_len=512)
_WIDE = GPTConfig(num_layers=3, d_model=2048, num_heads=16, vocab_size=4096, max_seq_len=256)
_LONG = GPTConfig(num_layers=3, d_model=256, num_heads=4, vocab_size=8192, max_seq_len=2048, tied_head=False)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    kv_heads=st.sampled_from([None, 1, 2]),  # of a Llama; None: a GPT
    num_layers=st.integers(1, 4),
    d_model=st.sampled_from([128, 256, 768, 2048]),
    is_narrow=st.booleans(),  # an MLP of the model's width
    # Tokens are no rows in memory: an odd number of them costs nothing, an odd vocabulary does.
    vocab_size=st.sampled_from([256, 8191, 8192, 50257, 50304]),
    max_seq_len=st.sampled_from([64, 511, 512, 2048]),
    tied_head=st.booleans(),
    batch=st.integers(1, 8),
    micro_batches=st.integers(1, 3),
    optimizer=st.sampled_from(list(OPTIMIZERS)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_one_rank_of_any_size(
    kv_heads, num_layers, d_model, is_narrow, vocab_size, max_seq_len, tied_head, batch, micro_batches, **how
):
    # Some 20 small kernels for a narrow Llama's angles let the device wait within a layer, which the sums do not see.
    d_model = max(d_model, 768) if kv_heads else d_model
    sizes = (num_layers, d_model, d_model // 64, vocab_size, max_seq_len, d_model if is_narrow else None, tied_head)
    config = LlamaConfig(*sizes, num_kv_heads=kv_heads) if kv_heads else GPTConfig(*sizes)
    data_parallel("one", 1, config, batch, micro_batches, **how)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "zero1"])
def test_a_llama_over_data_ranks(kind):
    config = LlamaConfig(3, 1024, 16, 8192, 512, num_kv_heads=4)
    data_parallel(kind, 4, config, 2, 2, dtype=torch.bfloat16)


@pytest.mark.parametrize("micro_batches", [thorough(1), 3])
@pytest.mark.parametrize("config", [_SMALL, thorough(_WIDE), _LONG], ids=["small", "wide", "long"])
@pytest.mark.parametrize("kind", ["ddp", "zero1", "fsdp"])
def test_data_parallel_with_and_without_shards(kind, config, micro_batches):
    data_parallel(kind, 4, config, 2, micro_batches)


def test_data_parallel_in_16_bits_between_nodes():
    data_parallel("ddp", 16, _LONG, 1, 2, "sgd-momentum", torch.bfloat16, "perlmutter")


_DEEP = GPTConfig(num_layers=5, d_model=512, num_heads=8, vocab_size=1000, max_seq_len=256, tied_head=False)
_ONE_LAYER = GPTConfig(num_layers=1, d_model=1000, num_heads=8, vocab_size=256, max_seq_len=256)
_TABLES = GPTConfig(num_layers=2, d_model=768, num_heads=8, vocab_size=50304, max_seq_len=64, tied_head=False)
_ODD = GPTConfig(num_layers=2, d_model=504, num_heads=8, vocab_size=30001, max_seq_len=77)


_HOW = [{"reshard": False}, {"replicas": 2}, {"recompute": "full"}, {"recompute": "selective"}]


@pytest.mark.parametrize("is_mixed", [False, True], ids=["one dtype", "mixed"])
@pytest.mark.parametrize("config", [_SMALL, thorough(_WIDE), _ONE_LAYER], ids=["small", "wide", "one layer"])
@pytest.mark.parametrize("how", _HOW, ids=str)
def test_sharded_parameters_with_copies_kept_or_recomputed(how, config, is_mixed):
    data_parallel("fsdp", 4, config, 2, 2, is_mixed=is_mixed, **how)


@pytest.mark.parametrize(("cluster", "replicas"), [("dgx-h100", 8), ("perlmutter", 4)])
def test_sums_over_replicas_travel_beside_those_over_shards(cluster, replicas):
    job = Job(GPTConfig(4, 1024, 16, 8192, 512), "fsdp", 16, 1, 3, cluster=cluster, is_mixed=True, replicas=replicas)
    run = launch(partial(train, job), ranks=16, cluster=cluster, fidelity="shapes", simulate=[0])
    agrees(run, predicted(job), [0])


def test_sharded_gradients_of_many_layers_pile_up_where_few_ranks_share_them():
    data_parallel("fsdp", 2, _DEEP, 1, 1, recompute="full")


@pytest.mark.parametrize("recompute", ["full", "selective"])
@pytest.mark.parametrize("kind", ["one", "ddp", "zero1"])
def test_recomputation_with_and_without_data_parallel(kind, recompute):
    data_parallel(kind, 1 if kind == "one" else 4, _SMALL, 2, 2, recompute=recompute)


@pytest.mark.parametrize("ranks", [3, thorough(16)])
def test_sizes_that_ranks_do_not_divide(ranks):
    data_parallel("fsdp", ranks, _ODD, 1, 2, dtype=torch.bfloat16)


@pytest.mark.parametrize("config", [_SMALL, thorough(_WIDE), thorough(_LONG), _ONE_LAYER, _TABLES])
@pytest.mark.parametrize("micro_batches", [thorough(1), 3])
def test_sharded_parameters_in_32_bits_under_layers_in_16(micro_batches, config):
    data_parallel("fsdp", 4, config, 2, micro_batches, is_mixed=True)


_NARROW = GPTConfig(num_layers=2, d_model=512, num_heads=8, vocab_size=1000, max_seq_len=77, tied_head=False)


@pytest.mark.parametrize("kind", ["ddp", "zero1"])
@pytest.mark.parametrize(
    ("config", "cluster", "ranks"),
    [
        pytest.param(_NARROW, "perlmutter", 8, id="broadcasts from ranks that begin no node"),
        pytest.param(_WIDE, "pcie-a100", 4, id="slow wires"),
        pytest.param(_TABLES, "dgx-h100", 2, id="buckets behind large tables"),
    ],
)
def test_gradients_travel_bucket_by_bucket_and_parameters_from_their_owners(config, cluster, ranks, kind):
    data_parallel(kind, ranks, config, 2, 1, dtype=torch.bfloat16, cluster=cluster)


@pytest.mark.parametrize("config", [_SMALL, thorough(_WIDE), _ONE_LAYER], ids=["small", "wide", "one layer"])
@pytest.mark.parametrize("how", [{}, {"reshard": False}, {"replicas": 2}, {"recompute": "full"}], ids=str)
def test_shards_that_travel_behind_the_layers(how, config):
    job = Job(config, "fsdp", 4, 2, 2, cluster="dgx-a100", **how)
    run = launch(partial(train, job), ranks=4, cluster="dgx-a100", fidelity="shapes", simulate=[0])
    agrees(run, prediction := predicted(job), [0])
    agrees_on_communication(run, prediction, [0], "data")


@pytest.mark.parametrize(
    ("config", "micro_batches", "reshards", "cluster"),
    [
        (GPTConfig(2, 256, 8, 256, 64), 2, True, "pcie-a100"),
        (GPTConfig(3, 256, 8, 512, 64, tied_head=False), 1, False, "dgx-a100"),
        pytest.param(GPTConfig(2, 256, 8, 256, 64, tied_head=False), 1, True, "pcie-a100", marks=pytest.mark.thorough),
    ],
)
def test_shards_that_travel_beside_the_layers_on_streams_of_their_own(config, micro_batches, reshards, cluster):
    sizes = (config.num_layers, config.d_model, config.vocab_size, config.max_seq_len, 2, micro_batches)
    script = Path(__file__).with_name("fsdp_script.py")
    run = simulate_script(script, [str(int(n)) for n in (*sizes, config.tied_head, reshards)], ranks=2, cluster=cluster)
    split = Parallel(data=2, zero_stage=3, reshard_after_forward=reshards)
    stack = replace(STACKS["torch"], has_master=False)
    how: dict[str, Any] = {"batch": 4 * micro_batches, "micro_batch": 2, "precision": "float32", "stack": stack}
    prediction = predict(Transformer.of(config), cluster, split, **how, derating=IDEAL)
    agrees(run, prediction, [0])
    agrees_on_communication(run, prediction, [0], "data")
