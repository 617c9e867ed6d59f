# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""Sequence parallel and 2-D programs as written for GPUs: the simulated GPU computes the same as gloo on the CPU.

The programs name the device, use asynchronous tensor-parallel collectives (torch returns an `AsyncCollectiveTensor`),
and keep q, k, v as DTensors in attention. DTensor has no rule for the CPU's attention: on gloo they are local tensors.
Parameters are drawn on the CPU, where both have the same random numbers.

Legend: B batch, S sequence, D width, H heads, V vocabulary.
"""

from typing import Any

import hypothesis
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from lablib import launch
from lablib.errors import RankError
from tests.conformance.reference import Gradients, assert_same, gradients, whole

B, S, D, H, V = 4, 8, 16, 4, 24


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, D // H)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(D), Attention(), nn.LayerNorm(D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layers = nn.Embedding(V, D), nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).clone()  # FSDP2 warns of a view


def transformer(device: str) -> Transformer:
    with torch.device("cpu"):
        model = Transformer()
    return model.to(device)


def parallelized(model: Transformer, mesh: Any) -> Transformer:
    """Sequence parallel between the layers, tensor parallel in them; on GPUs, heads of attention stay DTensors."""
    ends = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    cut = ColwiseParallel(use_local_output=mesh.device_type == "cpu")
    layer = {
        "norm1": SequenceParallel(),
        "attention": gathered,
        **{f"attention.{w}": cut for w in ("wq", "wk", "wv")},
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(model, mesh, ends)
    for one in model.layers:
        parallelize_module(one, mesh, layer)
    return model


def on_cpu(values: Gradients) -> Gradients:
    return {name: value.cpu() for name, value in values.items()}


def step(model: nn.Module, part: slice, device: str) -> Gradients:
    tokens = (torch.arange(B * (S + 1), device=device).view(B, S + 1) * 7 % 11 * 2)[part]
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return on_cpu({"loss": loss.detach(), **gradients(model)})


def sequence_parallel(device: str) -> Gradients:
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    return step(parallelized(transformer(device), mesh), slice(None), device)


def two_axes(device: str) -> Gradients:
    """FSDP2 over tensor parallel: each replica has its rows of the batch."""
    mesh = init_device_mesh(device, (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    model = parallelized(transformer(device), mesh["tp"])
    for one in (*model.layers, model):
        fully_shard(one, mesh=mesh["dp"])
    rows = B // 2 * mesh.get_local_rank("dp")
    found = step(model, slice(rows, rows + B // 2), device)
    loss = found["loss"].to(device)
    dist.all_reduce(loss, group=mesh.get_group("dp"))
    return {**found, "loss": (loss / 2).cpu()}


def rows_and_columns(device: str) -> Gradients:
    """Unwaited results of Shard(0) that go on into backward."""
    torch.manual_seed(0)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    with torch.device("cpu"):
        net = nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D)).double()
    net.to(device)
    plan = {"0": ColwiseParallel(input_layouts=Shard(0)), "2": RowwiseParallel(output_layouts=Shard(0))}
    parallelize_module(net, mesh, plan)
    x = torch.arange(B * D, dtype=torch.float64, device=device).view(B, D).sin() * (1 + dist.get_rank())
    y = net(x)
    y.square().sum().backward()
    return on_cpu({"y": whole(y, "y"), **gradients(net)})


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        (sequence_parallel, 4),
        (two_axes, 4),
        (rows_and_columns, 2),
        pytest.param(sequence_parallel, 2, marks=pytest.mark.thorough),  # the next test has its gradients
        pytest.param(two_axes, 2, marks=pytest.mark.thorough),  # its tensor axis has one rank
        pytest.param(rows_and_columns, 4, marks=pytest.mark.thorough),
    ],
)
def test_a_tensor_parallel_program_has_the_values_of_gloo_on_the_simulated_gpu(program: Any, ranks: int):
    expected = launch(program, "cpu", ranks=ranks, backend="gloo", timeout_s=120).values
    run = launch(program, "cuda", ranks=ranks, device="cuda")
    for found, on_gloo in zip(run.values, expected, strict=True):
        assert_same(found, on_gloo)
    assert run.traffic.sent_bytes() > 0


def test_sequence_parallel_has_the_gradients_of_one_device():
    expected = step(transformer("cpu"), slice(None), "cpu")
    for found in launch(sequence_parallel, "cuda", ranks=2, device="cuda").values:
        assert_same(found, expected)


PLACEMENTS = [Replicate(), Shard(0), Shard(1), Shard(2), Shard(3)]


def attention(inputs: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
    """The output, and the gradients of the inputs."""
    y = F.scaled_dot_product_attention(*inputs, **options)
    y.square().sum().backward()
    return [whole(x, "attention").cpu() for x in (y, *(one.grad for one in inputs))]


@hypothesis.settings(max_examples=12)
@hypothesis.given(st.data())
def test_attention_of_dtensors_is_attention_of_the_whole_tensors(data: st.DataObject):
    """On CUDA the rules come from its memory-efficient kernel: whole, in rows of the batch, or in heads."""
    ranks, mask = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(["none", "causal", "2-d", "4-d"]))
    rows, heads, queries = (data.draw(st.integers(1, n)) for n in (4, 4, 9))
    keys = queries if mask == "causal" else data.draw(st.integers(1, 9))
    groups = data.draw(st.sampled_from([1, 2]))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    placements = [data.draw(st.sampled_from(PLACEMENTS))] * 3
    hypothesis.assume(groups == 1 or placements[0] != Shard(1) or heads % ranks == 0)

    def program() -> None:
        generator = torch.Generator("cpu").manual_seed(0)
        sizes = (rows, heads * groups, queries, 8), (rows, heads, keys, 8), (rows, heads, keys, 8)
        values = [torch.randn(size, generator=generator, dtype=dtype, device="cpu").cuda() for size in sizes]
        options: dict[str, Any] = {"is_causal": mask == "causal", "enable_gqa": groups > 1}
        size = (queries, keys) if mask == "2-d" else (rows, 1, queries, keys)
        shown = torch.rand(size, generator=generator, device="cpu") < 0.5
        shown[..., 0] = True
        if mask in ("2-d", "4-d"):
            options["attn_mask"] = shown.cuda()
        expected = attention([x.clone().requires_grad_() for x in values], options)
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        if mask in ("2-d", "4-d"):
            options["attn_mask"] = distribute_tensor(shown.cuda(), mesh, [Replicate()])
        parts = [
            distribute_tensor(x, mesh, [placement]).requires_grad_()
            for x, placement in zip(values, placements, strict=True)
        ]
        for found, one in zip(attention(parts, options), expected, strict=True):
            torch.testing.assert_close(found, one)

    launch(program, ranks=ranks, device="cuda")


def test_attention_of_plain_and_distributed_tensors_is_refused_as_on_a_gpu():
    def program() -> None:
        q = torch.ones(2, 4, 8, 8, device="cuda")
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        F.scaled_dot_product_attention(distribute_tensor(q, mesh, [Shard(1)]), q, q)

    with pytest.raises(RankError, match="got mixed torch.Tensor and DTensor"):
        launch(program, ranks=2, device="cuda")
