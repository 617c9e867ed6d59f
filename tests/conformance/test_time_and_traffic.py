# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""What unmodified programs send, and when: volumes equal their closed forms, spans are where they belong.

On links without latency a ring is the fastest all-reduce, so the volumes are exact. Legend: n ranks, psi bytes of
parameters, L blocks, a = B D bytes of activations between blocks, p stages.

    DDP                         2 (n-1)/n psi a rank
    ZeRO-1 with DDP             psi to reduce, psi to broadcast
    FSDP2, resharded: ZeRO-3    3 (n-1)/n psi       kept after forward: ZeRO-2    2 (n-1)/n psi
    HSDP, n shards x r          3 (n-1)/n psi inside, 2 (r-1)/r psi/n between
    tensor parallel             L all-reduces of a in forward, L - 1 in backward (the input needs no gradient)
    pipeline                    a forward and a backward over each of p - 1 boundaries
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from lablib import find_cluster, launch
from lablib.run import COMPUTE, Run
from tests.conformance.reference import BATCH, NUM_BLOCKS, WIDTH, batch, build, loss_of, my_part

RANKS = 4
PSI = sum(param.nbytes for param in build().parameters())
A = BATCH * WIDTH * 8
_DGX = find_cluster("dgx-h100")
NO_LATENCY = _DGX.replace(intra=replace(_DGX.intra, latency_s=0.0), collective_overhead_s=0.0)


def ddp(num_steps: int = 1) -> None:
    model = DistributedDataParallel(build(), bucket_cap_mb=0.002)  # it must live through backward: it owns the reducer
    for _ in range(num_steps):  # in the first all gradients are one bucket
        loss_of(model(my_part())).backward()


def fsdp2(reshard: bool = True, shape: tuple[int, ...] = (RANKS,), makes_async: bool = False) -> None:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    model: nn.Module = build()
    for block in model.children():
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh)
    assert isinstance(model, FSDPModule)
    if makes_async:
        model._set_unshard_async_op(True)
    loss_of(model(my_part())).backward()


def tensor_parallel() -> None:
    mesh, model = init_device_mesh("cpu", (dist.get_world_size(),)), build()
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    loss_of(model(batch())).backward()


def pipelined() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(list(build())[rank], rank, size, torch.device("cpu"))
    target = {"target": torch.zeros_like(batch())} if rank == size - 1 else {}
    Schedule1F1B(stage, 4, loss_fn=loss_of).step(*([batch()] if rank == 0 else []), **target)


def run_of(program: Callable[[], Any], ranks: int = RANKS) -> Run:
    return launch(program, ranks=ranks, cluster=NO_LATENCY)


def sent(run: Run, *names: str) -> dict[str, list[float]]:
    """Bytes that each rank sent, by call."""
    found = {name: [0.0] * run.ranks for name in names}
    for transfer in run.traffic.transfers:
        if transfer.name in found:
            for rank, size_bytes in zip(transfer.ranks, transfer.sent_bytes, strict=True):
                found[transfer.name][rank] += size_bytes
    return found


# ---- volumes ----


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ddp_sends_each_gradient_twice_but_for_one_part_in_n(ranks: int):
    volumes = sent(run_of(ddp, ranks), "all_reduce")
    assert volumes["all_reduce"] == pytest.approx([2 * (ranks - 1) / ranks * PSI] * ranks)


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")  # torch's own, on importing its optimizers
def test_a_sharded_optimizer_reduces_every_gradient_and_broadcasts_every_parameter():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def program() -> None:
        model = DistributedDataParallel(build())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
        before = torch.zeros(1)
        dist.all_reduce(before)  # marks where the step begins
        loss_of(model(my_part())).backward()
        optimizer.step()

    transfers = run_of(program).traffic.transfers
    start = next(i for i, t in enumerate(transfers) if t.name == "all_reduce" and t.tensor_bytes == 4)
    volumes: Counter[str] = Counter()
    for transfer in transfers[start + 1 :]:
        volumes[transfer.name] += int(transfer.tensor_bytes)
    assert volumes == {"all_reduce": PSI, "broadcast": PSI}


def test_tensor_parallel_sends_activations_only():
    run = run_of(tensor_parallel)
    reduces = [s for s in run.timeline.select(rank=0, stream="comm") if s.name == "all_reduce"]
    assert Counter((s.phase, s.size_bytes) for s in reduces) == {
        ("forward", A): NUM_BLOCKS,
        ("backward", A): NUM_BLOCKS - 1,
    }


def test_a_pipeline_sends_activations_forward_and_their_gradients_back():
    run = run_of(pipelined)
    sends = [t for t in run.traffic.transfers if t.name == "send" and t.tensor_bytes == A / 4]
    by_edge = Counter(t.ranks for t in sends)
    edges = [(r, r + 1) for r in range(RANKS - 1)]
    assert by_edge == {edge: 4 for r, s in edges for edge in ((r, s), (s, r))}


# ---- spans ----

PROGRAMS: dict[str, Callable[[], Any]] = {
    "ddp": ddp,
    "fsdp2": fsdp2,
    "hsdp": partial(fsdp2, True, (2, 2)),
    "tensor parallel": tensor_parallel,
    "pipeline": pipelined,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_stream_does_one_thing_at_a_time_and_members_of_a_collective_agree_on_when(name: str):
    run = launch(PROGRAMS[name], ranks=RANKS)
    for rank in range(RANKS):
        for stream in run.timeline.streams(rank):
            spans = run.timeline.select(rank, stream)
            if stream == COMPUTE and name in ("fsdp2", "hsdp"):  # the copies of FSDP2 have CUDA streams of their own
                spans = [span for span in spans if "mm" in span.name]
            assert all(a.end_s <= b.start_s + 1e-15 for a, b in zip(spans, spans[1:], strict=False)), (rank, stream)
    spans_at = Counter(
        (s.rank, s.name, s.start_s, s.end_s) for s in run.timeline if s.is_communication and ":" not in s.stream[5:]
    )
    collectives = [t for t in run.traffic.transfers if t.name != "send"]
    assert collectives or name == "pipeline"
    for transfer in collectives:
        for member in transfer.ranks:
            assert spans_at[member, transfer.name, transfer.start_s, transfer.end_s] >= 1


def test_hybrid_sharding_and_replication_are_on_streams_of_their_own():
    timeline = run_of(partial(fsdp2, True, (2, 2))).timeline
    names = {stream: {s.name for s in timeline.select(0, stream)} for stream in timeline.streams(0)[1:]}
    assert set(map(frozenset, names.values())) == {
        frozenset({"all_gather_into_tensor", "reduce_scatter_tensor"}),
        frozenset({"all_reduce"}),
    }


def test_ddp_hides_buckets_behind_backward():
    """All but the last bucket can run while backward goes on, where kernels do not wait for their launches."""
    node = find_cluster("dgx-h100")
    node = node.replace(device=replace(node.device, launch_s=1e-12))
    one, two = (launch(ddp, num_steps, ranks=RANKS, cluster=node) for num_steps in (1, 2))
    assert one.traffic.count("all_reduce") == 1 and two.traffic.count("all_reduce") > 1 + NUM_BLOCKS
    for rank in range(RANKS):
        exposed_s = two.timeline.exposed_s(rank) - one.timeline.exposed_s(rank)
        busy_s = two.timeline.busy_s(rank, "comm") - one.timeline.busy_s(rank, "comm")
        assert 0 < exposed_s < busy_s / 2


def test_fsdp2_overlaps_its_gathers_on_a_cpu_only_when_they_are_asked_to_be_asynchronous():
    """On a GPU, FSDP2 gathers on a stream of its own. A CPU has none, so torch waits at once, unless told otherwise."""
    cpu = _DGX.replace(device=replace(_DGX.device, launch_s=0.0))
    runs = (launch(partial(fsdp2, makes_async=on), ranks=RANKS, cluster=cpu) for on in (False, True))
    waits, overlaps = (run.timeline for run in runs)
    assert waits.exposed_s(0) == pytest.approx(waits.busy_s(0, "comm"))
    assert overlaps.exposed_s(0) < overlaps.busy_s(0, "comm") == pytest.approx(waits.busy_s(0, "comm"))
    assert overlaps.makespan_s < waits.makespan_s
