# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""Context parallel: the sequence in shards, keys and values travelling round the ring.

torch's `context_parallel` serves the GPU's attention kernels and refuses the CPU's, on every backend. What it is made
of runs here: the ring with the CPU's flash attention in it, forward and backward, and the placing of the sequence.

Legend: B batch, H heads, S sequence, D head width, n ranks.

    causal, in order        rank r holds rows r S/n to (r+1) S/n: the last rank has the most to do
    causal, head and tail   rank r holds chunks r and 2n-1-r of 2n: all have the same to do
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard, set_rotate_method
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.distributed.tensor.experimental._context_parallel import _context_parallel_shard, _HeadTailLoadBalancer

from lablib import launch

B, H, S, D = 2, 3, 24, 4
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def query_key_value() -> list[Tensor]:
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(B, H, S, D, dtype=torch.float64, generator=generator) for _ in range(3)]


def of_grad() -> Tensor:
    """What the gradient of the output is: any numbers."""
    return torch.randn(B, H, S, D, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def on_one_device(is_causal: bool) -> list[Tensor]:
    """Output, and the gradients of query, key and value."""
    inputs = [x.requires_grad_() for x in query_key_value()]
    out = F.scaled_dot_product_attention(*inputs, is_causal=is_causal)
    return [out.detach(), *torch.autograd.grad(out, inputs, of_grad())]


def placed(x: Tensor, is_balanced: bool) -> Tensor:
    """This rank's rows of the sequence."""
    n, rank = dist.get_world_size(), dist.get_rank()
    if not is_balanced:
        return x.chunk(n, dim=2)[rank]
    chunks = x.chunk(2 * n, dim=2)
    return torch.cat([chunks[rank], chunks[2 * n - 1 - rank]], dim=2)


def attend_in_a_ring(is_causal: bool, is_balanced: bool) -> list[Tensor]:
    q, k, v = (placed(x, is_balanced) for x in query_key_value())
    world: Any = dist.group.WORLD
    out, logsumexp, *_ = ring._templated_ring_attention(world, 2, FORWARD, q, k, v, is_causal=is_causal)
    grads = ring._templated_ring_attention_backward(
        world,
        2,
        BACKWARD,
        placed(of_grad(), is_balanced).contiguous(),
        "grad_out",
        q,
        k,
        v,
        out,
        logsumexp,
        is_causal,
        dropout_p=0.0,
    )
    return [out, *grads[:3]]


@pytest.fixture(autouse=True)
def options_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """context_parallel() puts the process's options back as each rank found them: with many in a process, changed."""
    for name, value in vars(ring._cp_options).items():
        monkeypatch.setattr(ring._cp_options, name, value)


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch merges the blocks in float32 unless told; its options are one object for the process."""
    monkeypatch.setattr(ring._cp_options, "convert_to_f32", False)
    monkeypatch.setattr(ring._cp_options, "rotate_method", ring._cp_options.rotate_method)  # put back after the test
    monkeypatch.setattr(ring._cp_options, "enable_load_balance", True)
    return ring._cp_options


@pytest.mark.parametrize("rotate", ["allgather", "alltoall"])
@pytest.mark.parametrize(("is_causal", "is_balanced"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ring_attention_gives_the_output_and_gradients_of_one_device(
    in_float64: Any, rotate: str, is_causal: bool, is_balanced: bool, ranks: int
):
    in_float64.enable_load_balance = is_balanced
    set_rotate_method(rotate)
    run = launch(attend_in_a_ring, is_causal, is_balanced, ranks=ranks)
    expected = on_one_device(is_causal)
    for rank, found in enumerate(run.values):
        for tensor, whole in zip(found, expected, strict=True):
            if is_balanced:
                chunks = whole.chunk(2 * ranks, dim=2)
                mine = torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]], dim=2)
            else:
                mine = whole.chunk(ranks, dim=2)[rank]
            torch.testing.assert_close(tensor, mine, rtol=1e-9, atol=1e-11)


def test_a_ring_passes_keys_and_values_on_one_time_less_than_there_are_ranks(in_float64: Any):
    """Each exchange carries K and V of a shard, 2 B H S/n D numbers; backward adds n exchanges of their gradients."""
    in_float64.enable_load_balance = False
    set_rotate_method("alltoall")
    n = 4
    run = launch(attend_in_a_ring, True, False, ranks=n)
    shard_bytes = 2 * B * H * S // n * D * 8
    exchanges = [t for t in run.traffic.transfers if t.name.startswith("all_to_all")]
    assert [t.tensor_bytes for t in exchanges] == [shard_bytes] * ((n - 1) + (n - 1) + n)


def test_a_balancer_places_head_and_tail_and_unshard_puts_the_sequence_back():
    def program() -> tuple[Tensor, Tensor]:
        n = dist.get_world_size()
        mesh = init_device_mesh("cpu", (n,))
        whole = torch.arange(float(S)).view(1, S)
        balancer = _HeadTailLoadBalancer(S, n, "cpu")
        (mine,) = _context_parallel_shard(mesh, [whole], [1], balancer)
        assert isinstance(mine, Tensor)
        (back,) = context_parallel_unshard(mesh, [mine], [1], balancer)
        return mine, back

    chunks = torch.arange(float(S)).view(1, S).chunk(8, dim=1)
    for rank, (mine, back) in enumerate(launch(program, ranks=4).values):
        assert torch.equal(mine, torch.cat([chunks[rank], chunks[7 - rank]], dim=1))
        assert torch.equal(back, torch.arange(float(S)).view(1, S))


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_torch_has_no_sharding_rule_for_the_cpus_attention(backend: str):
    """The same refusal in processes. When torch has the rule, prove `context_parallel` itself here."""

    def program() -> str:  # answers with the refusal: an exception would end the processes, and new ones take seconds
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        x = torch.randn(1, 2, 8, 4)
        with pytest.raises(Exception) as refusal, context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]):
            dist.barrier()  # all ranks are inside, each with its own attention function
            F.scaled_dot_product_attention(x, x, x, is_causal=True)
        return str(refusal.value)

    for refusal in launch(program, ranks=2, backend=backend).values:
        assert "flash_attention_for_cpu.default does not have a sharding strategy" in refusal


def test_the_attention_of_the_process_is_its_own_again_after_ranks_replaced_theirs():
    def program() -> bool:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        before = F.scaled_dot_product_attention
        with context_parallel(mesh, buffers=[torch.randn(1, 2, 12, 4)], buffer_seq_dims=[2]):
            mine = F.scaled_dot_product_attention
            dist.barrier()
            kept = F.scaled_dot_product_attention is mine and mine is not before
        return kept and F.scaled_dot_product_attention is before

    before = F.scaled_dot_product_attention
    assert launch(program, ranks=3).values == [True] * 3
    assert F.scaled_dot_product_attention is before
