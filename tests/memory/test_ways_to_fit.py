"""What each way costs: the seconds, FLOPs and bytes of the simulator for those that it can run, and closed forms."""

import pytest
import torch
from torch import nn
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode

from lablib import DEVICES, LINKS, find_cluster, launch
from lablib.memory.checkpointing import checkpoint_every, checkpoint_first, checkpoint_operators, keep_all, run
from lablib.memory.ways_to_fit import LayerWork, Way, layer_costs, price_layers, ways_to_fit
from lablib.models import GPTConfig
from lablib.models.gpt import Block
from lablib.operators.fused_attention import FusedAttention
from lablib.operators.op import is_free, op_cost

BATCH, SEQ, WIDTH, HEADS, LAYERS = 4, 256, 512, 8, 6
DEVICE, LINK = find_cluster("dgx-h100").device, LINKS["pcie5"]


def layer(width: int = WIDTH) -> nn.Module:
    return Block(GPTConfig(1, width, HEADS, 32, SEQ), torch.device("meta"), torch.bfloat16)


def x(width: int = WIDTH, batch: int = BATCH) -> torch.Tensor:
    return torch.empty(batch, SEQ, width, dtype=torch.bfloat16, device="meta")


@pytest.fixture(scope="module")
def ways() -> dict[str, Way]:
    return {way.name: way for way in ways_to_fit(price_layers(layer(), x(), [DEVICE])[0], LAYERS, LINK)}


PLANS = {
    "keep all": keep_all(LAYERS),
    "full recomputation": checkpoint_every(LAYERS),
    "first half": checkpoint_first(LAYERS, LAYERS // 2),
    "selective": None,
}


def simulated(name: str):
    """The step on the simulator: seconds, FLOPs, and the peak of what was neither a parameter nor its gradient."""
    plan = PLANS[name]

    def program() -> None:
        with record_function("setup"):
            layers, y = [layer() for _ in range(LAYERS)], x().requires_grad_()
        if plan is None:
            for each in layers:
                y = checkpoint_operators(each, y)
        else:
            y = run(plan, layers, y)
        y.backward(torch.empty_like(y))

    done = launch(program, ranks=1, cluster="dgx-h100", fidelity="shapes")
    time_s = sum(span.duration_s for span in done.timeline.without("setup"))
    return time_s, sum(span.flops for span in done.timeline), done.memory


@pytest.mark.parametrize("name", PLANS)
def test_seconds_and_flops_are_the_simulators(ways, name):
    time_s, flops, memory = simulated(name)
    assert ways[name].time_s == pytest.approx(time_s, rel=1e-3)
    assert ways[name].flops == pytest.approx(flops, rel=1e-9)
    activations = max(memory.curve(0)[1]["activation"])
    temporaries = 4 * x().nbytes * 4  # what an operator makes on its way: F wide, a gradient beside its activation
    assert ways[name].memory_bytes <= activations + temporaries
    assert activations <= ways[name].memory_bytes + temporaries


def test_the_ladder_of_flops_and_bytes(ways):
    """16 D of 16 D + H + 4 numbers for F = 4 D; a checkpoint keeps D, and makes all but the last product again."""
    tokens = BATCH * SEQ
    kept = tokens * (2 * (16 * WIDTH) + 4 * HEADS + 2 * 4 * 4)  # statistics of norms and of softmax in float32
    assert ways["keep all"].memory_bytes == pytest.approx(LAYERS * kept, rel=2e-3)
    one = ways["keep all"].memory_bytes / LAYERS
    assert ways["full recomputation"].memory_bytes == (LAYERS - 1) * 2 * tokens * WIDTH + one
    products, scores = LAYERS * 2 * tokens * 12 * WIDTH * WIDTH, LAYERS * 4 * tokens * SEQ * WIDTH
    assert ways["keep all"].flops == 3 * products + 3.5 * scores  # its backward makes q k^T again
    last_product = LAYERS * 2 * tokens * 4 * WIDTH * WIDTH
    assert ways["full recomputation"].flops == 4 * products + 4.5 * scores - last_product
    assert ways["first half"].flops == 3.5 * products + 4 * scores - last_product / 2
    for name in ("selective", "offload", "8 bits", "micro-batch / 2"):
        assert ways[name].flops == ways["keep all"].flops
    assert ways["micro-batch / 2"].memory_bytes == ways["keep all"].memory_bytes / 2


def test_the_other_ways_by_hand(ways):
    (cost,), plain = layer_costs(layer(), x(), [DEVICE]), ways["keep all"]
    assert isinstance(cost, LayerWork)
    (half,) = layer_costs(layer(), x(batch=BATCH // 2), [DEVICE])
    assert ways["micro-batch / 2"].time_s == 2 * LAYERS * (half.forward_s + half.backward_s)
    numbers = cost.kept_bytes / 2
    assert ways["8 bits"].memory_bytes == LAYERS * (numbers + 8 * numbers / 256)
    stream_s = 3 * numbers / (DEVICE.memory_bandwidth_bytes_per_s * DEVICE.memory_efficiency)
    assert ways["8 bits"].time_s - plain.time_s <= 2 * LAYERS * stream_s * (1 + 1e-9)  # less where the cache helps
    out_s = 2.5e-6 + cost.kept_bytes / 63e9
    exposed_s = (LAYERS - 1) * (2 * out_s - cost.forward_s - cost.backward_s)
    assert ways["offload"].time_s == pytest.approx(plain.time_s + exposed_s)  # at this width the link is the slower
    assert ways["offload"].memory_bytes == 2 * cost.kept_bytes
    assert ways["offload checkpoints"].memory_bytes == 2 * cost.input_bytes + cost.kept_bytes
    products = BATCH * SEQ * (2 * (3 + 1 + 1 + 4 + 1) * WIDTH + 4 * HEADS)  # q k v; attention; out; up; down
    assert cost.selective_bytes == pytest.approx(cost.input_bytes + products, rel=2e-3)


def test_a_wider_layer_hides_its_copies_and_a_faster_device_does_not():
    def extra(width: int, *names: str) -> list[float]:
        times = []
        for priced in price_layers(layer(width), x(width), [DEVICES[name] for name in names]):
            plain, *others = ways_to_fit(priced, LAYERS, LINK)
            times += [way.time_s / plain.time_s - 1 for way in others if way.name == "offload"]
        return times

    a100, h100, b200 = extra(8192, "A100-80GB-SXM", "H100-80GB-SXM", "B200-SXM")
    assert b200 > h100 > a100
    assert extra(512, "H100-80GB-SXM") > [h100]


@pytest.mark.parametrize("way", ["plain", "full", "selective"])
def test_one_step_gives_the_seconds_of_three(way):
    """Plain, checkpointed and selectively checkpointed steps, each run and priced by itself; a device among others."""
    each, start = layer(), x().requires_grad_()
    seconds = []

    class Priced(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if not is_free(func):
                cost = op_cost(func, args, kwargs or {}, out, DEVICE)
                seconds.append(cost.time_s - cost.launch_s)
            return out

    def run_layer(y: torch.Tensor) -> torch.Tensor:
        with FusedAttention():
            return each(y)

    plan = {"plain": keep_all(1), "full": checkpoint_every(1)}
    with Priced():
        y = checkpoint_operators(run_layer, start) if way == "selective" else run(plan[way], [run_layer], start)
        torch.autograd.grad(y, [start, *each.parameters()], torch.empty_like(y))
    cost = layer_costs(each, start, [DEVICES["A100-80GB-SXM"], DEVICE])[1]
    again_s = {"plain": 0.0, "full": cost.again_s, "selective": cost.selective_s}[way]
    assert cost.forward_s + cost.backward_s + again_s == pytest.approx(sum(seconds), rel=1e-12)


def test_bad_input():
    with pytest.raises(ValueError, match="must be even, to be halved: got 3; try 4"):
        price_layers(layer(), x(batch=3), [DEVICE])
    with pytest.raises(ValueError, match="shapes are priced"):
        layer_costs(nn.Linear(4, 4), torch.ones(2, 4), [DEVICE])
