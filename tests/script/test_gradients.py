"""Gradients, states and copies that torch makes below Python are where their parameter is."""

import ast

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SETUP = """
import os, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.utils.checkpoint import checkpoint
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
here = torch.device("cuda", int(os.environ["LOCAL_RANK"]))

class Take(nn.Module):
    def __init__(self, what, *parts):
        super().__init__()
        self.what, self.parts = what, nn.ModuleList(parts)
    def forward(self, x):
        return self.what(x, *self.parts)

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.number = nn.Parameter(torch.tensor(1.0))
    def forward(self, x):
        return x * self.scale.expand_as(x) + self.number

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return torch.full(grad.shape, 2.0, device=grad.device) * grad

table = nn.Embedding(16, 8, sparse=False)
ids = torch.arange(4, device="cuda")
"""
LAYERS = {
    "linear": "nn.Linear(8, 8)",
    "transposed": "Take(lambda x, p: x @ p.weight.t().contiguous().t(), nn.Linear(8, 8, bias=False))",
    "scaled": "Scaled()",
    "norm": "nn.LayerNorm(8)",
    "rms": "nn.RMSNorm(8)",
    "batch norm": "nn.BatchNorm1d(8)",
    "conv": "Take(lambda x, c: c(x.view(-1, 2, 2, 2)).reshape(-1, 8), nn.Conv2d(2, 2, 3, padding=1))",
    "embedding": "Take(lambda x, e: x + e(ids), nn.Embedding(16, 8))",
    "tied": "Take(lambda x, e: (x + e(ids)) @ e.weight[:8], nn.Embedding(16, 8))",
    "attention": "Take(lambda x, a: a(x[None], x[None], x[None])[0][0], nn.MultiheadAttention(8, 2, batch_first=True))",
    "encoder": "nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)",
    "gru": "Take(lambda x, g: g(x[None])[0][0], nn.GRU(8, 8, batch_first=True))",
    "prelu": "nn.PReLU()",
    "bilinear": "Take(lambda x, b: b(x, x), nn.Bilinear(8, 8, 8))",
    "function": "Take(lambda x, l: Double.apply(l(x)), nn.Linear(8, 8))",
    "checkpoint": "Take(lambda x, l: checkpoint(l, x, use_reentrant=False), nn.Linear(8, 8))",
    "reentrant": "Take(lambda x, l: checkpoint(l, x, use_reentrant=True), nn.Linear(8, 8))",
    "slices": "Take(lambda x, l: torch.cat([x[:, :4], l(x)[:, 4:]], 1), nn.Linear(8, 8))",
    "maximum": "Take(lambda x, l: x + l(x).max(1, keepdim=True).values, nn.Linear(8, 8))",
    "cumulative": "Take(lambda x, l: l(x).cumsum(1).softmax(-1), nn.Linear(8, 8))",
}
BACKWARDS = {
    "sum": "y.sum().backward()",
    "mean": "y.square().mean().backward()",
    "gradient given": "y.backward(torch.ones_like(y))",
    "expanded": "y.backward(torch.ones(1, device='cuda').expand_as(y))",
    "one number": "y[0, 0].backward()",
    "twice": "y.sum().backward(retain_graph=True); y.mean().backward()",
    "double": "(g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True); g.square().sum().backward()",
    "by hand": "\n".join(
        (
            "owned = [p for p in model.parameters()]",
            "for p, g in zip(owned, torch.autograd.grad(y.square().sum(), owned, allow_unused=True)): p.grad = g",
        )
    ),
    "scaler": "scaler = torch.amp.GradScaler('cuda'); scaler.scale(y.square().mean()).backward()",
    "hook": "[p.register_hook(lambda g: g * 2) for p in model.parameters()]; y.square().sum().backward()",
}
OPTIMIZERS = {
    "sgd": "torch.optim.SGD(owned, 0.1, momentum=0.9, foreach={foreach})",
    "adamw": "torch.optim.AdamW(owned, foreach={foreach})",
    "fused": "torch.optim.AdamW(owned, fused=True)",
    "adagrad": "torch.optim.Adagrad(owned, foreach={foreach})",
    "rmsprop": "torch.optim.RMSprop(owned, foreach={foreach})",
    "adafactor": "torch.optim.Adafactor(owned, foreach={foreach})",
}
STEP = """
model = nn.Sequential({layers}).to(here)
if {is_ddp}:
    model = nn.parallel.DistributedDataParallel(model, device_ids=[here.index])
owned = list(model.parameters())
for step in range(2):
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    y = model(x)
    {backward}
    for p in owned:
        if p.grad is not None:
            assert p.grad.device == here, ("gradient", p.shape, p.grad.device)
            dist.all_reduce(p.grad)
    nn.utils.clip_grad_norm_(owned, 1.0, foreach={foreach})
    if step == 0:
        optimizer = {optimizer}
    optimizer.step()
    optimizer.zero_grad(set_to_none=step == 0)
for p in owned:
    assert p.device == here
    for name, value in optimizer.state[p].items():
        # The number of steps is kept on the host, as torch does, unless the optimizer is fused.
        assert not torch.is_tensor(value) or name == "step" or value.device == here, (name, value.device)
print(torch.cuda.memory_allocated())
"""


def script(layers: list[str], backward: str, optimizer: str, foreach: bool, is_ddp: bool) -> str:
    return SETUP + STEP.format(
        layers=", ".join(LAYERS[name] for name in layers),
        backward=BACKWARDS[backward].replace("\n", "\n    "),
        optimizer=OPTIMIZERS[optimizer].format(foreach=foreach),
        foreach=foreach,
        is_ddp=is_ddp,
    )


@settings(
    max_examples=10,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # it keeps nothing
)
@given(data=st.data())
def test_every_gradient_and_every_state_is_on_its_parameters_device(simulated, data):
    """Any layers, any way to go backward, any optimizer; also through DDP, where its hooks are honoured."""
    backward = data.draw(st.sampled_from(sorted(BACKWARDS)))
    # Of these torch itself has no second derivative, or none through grad().
    without = {"reentrant", "attention", "encoder", "gru"} if backward in ("double", "by hand") else set()
    layers = data.draw(st.lists(st.sampled_from(sorted(set(LAYERS) - without)), min_size=1, max_size=4))
    # DDP's hooks run in backward() only, once, and not inside a reentrant checkpoint of a first layer.
    is_ddp = backward in ("sum", "mean", "gradient given", "expanded") and data.draw(st.booleans())
    optimizer, foreach = data.draw(st.sampled_from(sorted(OPTIMIZERS))), data.draw(st.booleans())
    run = simulated(script(layers, backward, optimizer, foreach, is_ddp))
    assert not [s.name for s in run.timeline if s.name == "copy device to host" and "backward()" in s.source]


def test_the_gradients_of_all_layers_are_on_the_device(simulated):
    run = simulated(script(sorted(LAYERS), "expanded", "sgd", True, False), ranks=1)
    assert int(run.stdout[0]) > 0


def test_a_part_of_the_graph_that_is_on_the_host_keeps_its_gradients_there(simulated):
    run = simulated(
        SETUP
        + """
host, device = nn.Linear(8, 8), nn.Linear(8, 1).cuda()
device(host(torch.ones(2, 8)).cuda()).sum().backward()
alone = nn.Linear(8, 8)
alone(torch.ones(2, 8)).sum(0).max().backward()
print([str(p.grad.device) for m in (host, device, alone) for p in m.parameters()])
""",
        ranks=1,
    )
    assert ast.literal_eval(run.stdout[0]) == ["cpu"] * 2 + ["cuda:0"] * 2 + ["cpu"] * 2
