"""Optimizers and clipping find the tensors of the simulated device there, not on the CPU that computes for it."""

import torch
from torch import nn

from lablib import launch


def test_an_optimizer_of_tensors_in_both_places_works_on_each_by_itself():
    def program() -> list[float]:
        params = [nn.Parameter(torch.ones(2, device=device)) for device in ("cuda", "cpu", "cuda")]
        for param in params:
            param.grad = torch.ones_like(param)
        torch.optim.SGD(params, 0.5, momentum=0.9, foreach=True).step()
        return [param.sum().item() for param in params]

    assert launch(program, ranks=1, device="cuda").values == [[1.0, 1.0, 1.0]]


def test_a_scaled_step_with_clipping_copies_nothing_between_host_and_device_but_what_the_scaler_asks():
    def program() -> None:
        model = nn.Linear(4, 4)
        scaler = torch.amp.GradScaler("cuda")  # pyright: ignore[reportPrivateImportUsage]
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)

    run = launch(program, ranks=1, device="cuda")
    assert not [span.name for span in run.timeline.spans if span.name.startswith("copy device to host")]
