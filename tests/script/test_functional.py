# pyright: reportArgumentType=false, reportCallIssue=false
"""`torch.func`, flex_attention, and tensors on "meta", in programs that name a simulated GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from lablib import launch
from lablib.errors import RankError


def numbers(*size: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(size).numel(), device="cpu").view(size).sin()


def functional_gradient(x: Tensor) -> Tensor:
    model = nn.Linear(2, 1, bias=False).to(x.device)
    weights = {"weight": torch.ones(1, 2, device=x.device)}
    return torch.func.grad(lambda w: torch.func.functional_call(model, w, (x,)).square().sum())(weights)["weight"]


TRANSFORMED: dict[str, Callable[[Tensor], Tensor]] = {
    "vmap": torch.func.vmap(lambda x: x * 2 + torch.ones(2, device=x.device)),
    "grad": torch.func.grad(lambda x: x.pow(3).sum()),
    "vmap of grad": torch.func.vmap(torch.func.grad(lambda x: x.pow(3).sum())),
    "jacobian": torch.func.jacrev(lambda x: x.pow(2).sum(0)),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1],
    "Hessian": torch.func.hessian(lambda x: x.pow(3).sum()),
    "functional_call": functional_gradient,
    "moved in vmap": torch.func.vmap(lambda x: x.cpu().to(x.device).exp()),
    "moved in grad": torch.func.grad(lambda x: x.cpu().pow(2).to(x.device).sum()),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it, for jvp
@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_transform_has_the_values_of_the_cpu_and_stays_on_the_device(name: str):
    def program() -> tuple[str, str, Tensor]:
        x = numbers(3, 2)
        return TRANSFORMED[name](x).device.type, (y := TRANSFORMED[name](x.cuda())).device.type, y.cpu()

    for on_host, on_device, found in launch(program, ranks=2, device="cuda").values:
        assert (on_host, on_device) == ("cpu", "cuda")
        torch.testing.assert_close(found, TRANSFORMED[name](numbers(3, 2)))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_a_block_mask_is_causal_attention():
    def attention(is_flex: bool) -> tuple[Tensor, Tensor]:
        q = numbers(1, 2, 128, 16).cuda().requires_grad_()
        if is_flex:
            mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 128, 128, device="cuda")
            y: Any = flex_attention(q, q, q, block_mask=mask)
        else:
            y = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        y.square().sum().backward()
        assert q.grad is not None and q.grad.device == q.device == y.device
        return y.detach().cpu(), q.grad.cpu()

    run = launch(lambda: (attention(True), attention(False)), ranks=1, device="cuda")
    for found, expected in zip(*run.values[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    names = {span.name for span in run.timeline.select(rank=0)}
    assert "aten._safe_softmax" in names, names  # of flex_attention: its operators are priced


META: dict[str, Callable[[], Tensor]] = {
    "cast": lambda: torch.arange(4, device="meta").to(torch.float32),
    "cast of a module": lambda: nn.Linear(4, 4, device="meta").to(dtype=torch.bfloat16).weight,
    "to another's place": lambda: torch.ones(4, device="cuda").to(torch.ones(2, device="meta")),
    "other to meta": lambda: torch.ones(4, device="meta").to(torch.ones(2, device="meta", dtype=torch.half)),
    "from the device": lambda: torch.ones(4, device="cuda").to("meta") + 1,
    "like one of the device": lambda: torch.empty_like(torch.ones(4, device="cuda"), device="meta"),
}


@pytest.mark.parametrize("name", META)
def test_a_tensor_on_meta_stays_there(name: str):
    assert launch(lambda: META[name]().device.type, ranks=1, device="cuda").values == ["meta"]


def test_a_tensor_on_meta_cannot_move_to_the_device():
    with pytest.raises(RankError, match="Cannot copy out of meta tensor; no data!"):
        launch(lambda: torch.ones(4, device="meta").cuda(), ranks=1, device="cuda")
    assert launch(
        lambda: nn.Linear(4, 4, device="meta").to_empty(device="cuda").weight.device.type, ranks=1, device="cuda"
    ).values == ["cuda"]
