# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""FSDP2, `fully_shard`: parameters, gradients and optimizer state in shards, the gradients of one device.

Legend: n ranks, psi bytes of parameters, L blocks.

    reshard_after_forward True     2 L all-gathers (forward and backward) and L reduce-scatters
                          False    L all-gathers and L reduce-scatters
"""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from lablib import launch
from tests.conformance import reference

Reshard = bool | int


def sharded(model: nn.Module, per_block: bool = True, **options: object) -> nn.Module:
    """`fully_shard` on each block and on the whole, or on the whole only."""
    if per_block:
        for block in model.children():
            fully_shard(block, **options)
    return fully_shard(model, **options)


def step(reshard: Reshard = True, per_block: bool = True, num_rows: int = reference.BATCH) -> reference.Gradients:
    model = sharded(reference.build(), per_block, reshard_after_forward=reshard)
    reference.loss_of(model(reference.my_part(reference.batch(num_rows)))).backward()
    return reference.gradients(model)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("per_block", [True, False])
def test_shards_of_any_number_of_ranks_give_the_gradients_of_one_device(ranks: int, per_block: bool):
    """3 and 8 ranks do not divide every parameter: some shards are shorter or empty."""
    run = launch(step, True, per_block, 24, ranks=ranks)
    for found in run.values:
        reference.assert_same(found, reference.one_device(x=reference.batch(24)))


@pytest.mark.parametrize(("reshard", "num_gathers"), [(True, 2), (False, 1), (2, 2)])
def test_reshard_after_forward_decides_how_often_parameters_are_gathered(reshard: Reshard, num_gathers: int):
    """With 2, the blocks keep their parameters on pairs of ranks, so backward gathers from a pair."""

    def program() -> tuple[int, reference.Gradients]:
        model = sharded(reference.build(), reshard_after_forward=reshard)
        reference.loss_of(model(reference.my_part())).backward()
        return 0, {name: param.grad.to_local() for name, param in model.named_parameters()}

    run = launch(program, ranks=4)
    gathers = [t for t in run.traffic.transfers if t.name == "all_gather_into_tensor"]
    members = [t.ranks for t in gathers]
    of_rank_0 = [ranks for ranks in members if 0 in ranks]
    assert len(of_rank_0) == num_gathers * reference.NUM_BLOCKS
    assert [len(ranks) for ranks in of_rank_0[reference.NUM_BLOCKS :]] == (
        [2 if reshard == 2 else 4] * (num_gathers - 1) * reference.NUM_BLOCKS
    )
    assert run.traffic.count("reduce_scatter_tensor") == reference.NUM_BLOCKS
    reference.launched(partial(step, reshard), expected=reference.one_device())


@pytest.mark.parametrize("is_synced_late", [True, False])
def test_gradients_accumulate_with_or_without_communication(is_synced_late: bool):
    """Without: gradients stay whole until the last micro-batch, and are reduced once."""

    def program() -> reference.Gradients:
        model = sharded(reference.build())
        assert isinstance(model, FSDPModule)
        micro_batches = reference.my_part().chunk(4)
        for i, micro_batch in enumerate(micro_batches):
            if is_synced_late:
                model.set_requires_gradient_sync(i == len(micro_batches) - 1)
            (reference.loss_of(model(micro_batch)) / len(micro_batches)).backward()
        return reference.gradients(model)

    run = reference.launched(program, expected=reference.one_device())
    assert run.traffic.count("reduce_scatter_tensor") == reference.NUM_BLOCKS * (1 if is_synced_late else 4)


def test_parameters_may_stay_gathered_between_micro_batches():
    def program() -> reference.Gradients:
        model = sharded(reference.build())
        model.set_reshard_after_backward(False)
        first, last = reference.my_part().chunk(2)
        (reference.loss_of(model(first)) / 2).backward()
        model.set_reshard_after_backward(True)
        (reference.loss_of(model(last)) / 2).backward()
        return reference.gradients(model)

    reference.launched(program, expected=reference.one_device())


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("foreach", [True, False])
def test_clipping_sees_the_norm_of_all_shards(norm_type: float, foreach: bool):
    def program() -> tuple[Tensor, reference.Gradients]:
        model = sharded(reference.build())
        reference.loss_of(model(reference.my_part())).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type, foreach=foreach)
        assert isinstance(norm, DTensor)
        return norm.full_tensor(), reference.gradients(model)

    model = reference.build()
    reference.one_device(model)
    expected = nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type)
    assert expected > 0.01
    for norm, found in launch(program, ranks=4).values:
        torch.testing.assert_close(norm, expected, rtol=1e-12, atol=0)
        reference.assert_same(found, reference.gradients(model))


# ---- mixed precision ----


def bf16_with_fp32_reduce(reduce_dtype: torch.dtype) -> reference.Gradients:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype, output_dtype=torch.float32)
    model = sharded(reference.build(dtype=torch.float32), mp_policy=policy)
    reference.loss_of(model(reference.my_part(reference.batch(dtype=torch.float32)))).backward()
    return reference.gradients(model)


def casts_on_one_device(reduce_dtype: torch.dtype) -> reference.Gradients:
    """The same casts, rank by rank: compute in bfloat16, then average in the type of the reduction, in rank order."""
    total: dict[str, Tensor] = {}
    for part in reference.batch(dtype=torch.float32).chunk(4):
        model = reference.build(dtype=torch.float32).to(torch.bfloat16)
        y = part.bfloat16()
        for block in model:
            y = block(y).float().bfloat16()  # every block casts its output to float32 and its input to bfloat16
        reference.loss_of(y.float()).backward()
        for name, grad in reference.gradients(model).items():
            total.setdefault(name, torch.zeros_like(grad, dtype=torch.float32))
            total[name] += grad.to(reduce_dtype).float() / 4
    return {name: grad.to(reduce_dtype).float() for name, grad in total.items()}


@pytest.mark.parametrize(("reduce_dtype", "tolerance"), [(torch.float32, 1e-7), (torch.bfloat16, 2**-7)])
def test_mixed_precision_gives_what_the_same_casts_give_on_one_device(reduce_dtype: torch.dtype, tolerance: float):
    """bfloat16 keeps 8 bits; reduced in float32 there is nothing more to lose."""
    run = launch(bf16_with_fp32_reduce, reduce_dtype, ranks=4)
    for found in run.values:
        reference.assert_same(found, casts_on_one_device(reduce_dtype), tolerance)
    psi = sum(param.numel() for param in reference.build().parameters())
    gathered, scattered = (
        sum(t.tensor_bytes for t in run.traffic.transfers if t.name == name)
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor")
    )
    assert gathered == 2 * 2 * psi + 4 * psi  # the last: this test reads whole gradients
    assert scattered == reduce_dtype.itemsize * psi


# ---- meshes ----


def test_hybrid_sharding_reduces_over_shards_and_then_over_replicas():
    def program() -> reference.Gradients:
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
        model = sharded(reference.build(), mesh=mesh)
        reference.loss_of(model(reference.my_part())).backward()
        return reference.gradients(model)

    run = reference.launched(program, ranks=8, expected=reference.one_device())
    reduces = [t for t in run.traffic.transfers if t.name == "all_reduce"]
    scatters = [t for t in run.traffic.transfers if t.name == "reduce_scatter_tensor"]
    assert {t.ranks for t in scatters} == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert {t.ranks for t in reduces} == {(r, r + 4) for r in range(4)}
    # A replica's ranks all-reduce their shards: a quarter of what was scattered.
    assert sum(t.tensor_bytes for t in reduces) == 2 * sum(t.tensor_bytes for t in scatters) / 4


def test_an_all_reduce_over_replicas_may_wait_for_the_last_micro_batch():
    def program() -> reference.Gradients:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = sharded(reference.build(), mesh=mesh)
        first, last = reference.my_part().chunk(2)
        model.set_requires_all_reduce(False)
        (reference.loss_of(model(first)) / 2).backward()
        model.set_requires_all_reduce(True)
        (reference.loss_of(model(last)) / 2).backward()
        return reference.gradients(model)

    run = reference.launched(program, expected=reference.one_device())
    assert run.traffic.count("reduce_scatter_tensor") == 2 * 2 * reference.NUM_BLOCKS
    assert run.traffic.count("all_reduce") == 2 * reference.NUM_BLOCKS


# ---- policies and options ----


def with_prefetching_of_more_blocks_and_unsharding_by_hand() -> nn.Module:
    model = sharded(reference.build())
    blocks = list(model.children())
    for i, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 3])
        block.set_modules_to_backward_prefetch(blocks[max(0, i - 2) : i][::-1])
    blocks[0].unshard(async_op=True).wait()
    return model


def made_on_meta() -> nn.Module:
    """It gets memory after sharding."""
    torch.manual_seed(7)  # nothing of the values below comes from here
    with torch.device("meta"):
        model = reference.build()
    sharded(model)
    model.to_empty(device="cpu")
    set_model_state_dict(model, reference.build().state_dict(), options=StateDictOptions(full_state_dict=True))
    return model


def scattered_from_rank_0() -> nn.Module:
    torch.manual_seed(dist.get_rank() + 100)
    model = sharded(nn.Sequential(*(type(block)() for block in reference.build())).double())
    state = dict(reference.build().state_dict()) if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, state, options=options)
    return model


WAYS = {
    "on the host": lambda: sharded(reference.build(), offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "the last dimension": lambda: sharded(reference.build(), shard_placement_fn=lambda param: Shard(param.dim() - 1)),
    "prefetching": with_prefetching_of_more_blocks_and_unsharding_by_hand,
    "meta": made_on_meta,
    "scattered": scattered_from_rank_0,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_model_sharded_in_another_way_gives_the_gradients_of_one_device(way: str):
    def program() -> reference.Gradients:
        model = WAYS[way]()
        reference.loss_of(model(reference.my_part())).backward()
        return reference.gradients(model)

    reference.launched(program, expected=reference.one_device())


# ---- several steps, and the state ----


def test_steps_of_sgd_and_a_gathered_state_equal_one_device():
    def program() -> tuple[reference.Gradients, reference.Gradients]:
        model = sharded(reference.build())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for seed in range(3):
            optimizer.zero_grad()
            reference.loss_of(model(reference.my_part(reference.batch(seed=seed)))).backward()
            optimizer.step()
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        return reference.parameters(model), {name: t for name, t in full.items() if isinstance(t, Tensor)}

    model = reference.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for seed in range(3):
        optimizer.zero_grad()
        reference.loss_of(model(reference.batch(seed=seed))).backward()
        optimizer.step()
    for found, state in launch(program, ranks=4).values:
        reference.assert_same(found, reference.parameters(model))
        reference.assert_same(state, dict(model.state_dict()))
