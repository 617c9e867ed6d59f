# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""Activation checkpointing: forward is computed again in backward, the gradients stay those of one device."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from lablib import launch
from tests.conformance import reference


def keep_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Selective: keep what matrix products give, compute the rest again."""
    is_product = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


class Checkpointed(nn.Sequential):
    """Computes every block again in backward."""

    options: dict[str, Any]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Sequential's name
        input.requires_grad_()  # the reentrant way computes again only what has an input that needs a gradient
        for block in self:
            input = checkpoint(block, input, **self.options)
        return input


WAYS: dict[str, dict[str, Any]] = {
    "non-reentrant": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "selective": {"use_reentrant": False, "context_fn": partial(create_selective_checkpoint_contexts, keep_products)},
}


def wrapped(way: str, wrap: Callable[[nn.Module], nn.Module]) -> reference.Gradients:
    model = Checkpointed(*reference.build())
    model.options = WAYS[way]
    model = wrap(model)
    reference.loss_of(model(reference.my_part().clone())).backward()
    return reference.gradients(model)


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, bucket_cap_mb=0.002)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrap", [ddp, reference.fsdp2])
def test_recomputed_activations_give_the_gradients_of_one_device(way: str, wrap: Callable[[nn.Module], nn.Module]):
    reference.launched(wrapped, way, wrap, expected=reference.one_device())


@pytest.mark.parametrize(("way", "again"), [("non-reentrant", 1), ("reentrant", 2), ("selective", 0)])
def test_the_timeline_shows_what_is_computed_again(way: str, again: int):
    """A block has 2 products. The reentrant way computes both again; the other stops at what backward asks for."""
    run = launch(wrapped, way, ddp, ranks=2)
    products = [s for s in run.timeline.select(rank=0) if s.name in ("aten.mm", "aten.addmm")]
    count = Counter(span.phase for span in products)
    assert count == {"forward": 2 * reference.NUM_BLOCKS, "backward": 4 * reference.NUM_BLOCKS} | (
        {"recompute": again * reference.NUM_BLOCKS} if again else {}
    )
    assert all(span.is_recompute == (span.phase == "recompute") for span in products)


def test_blocks_wrapped_by_torch_and_then_sharded():
    def program() -> reference.Gradients:
        model = reference.build()
        apply_activation_checkpointing(model, checkpoint_wrapper, check_fn=lambda m: isinstance(m, reference.Block))
        model = reference.fsdp2(model)
        reference.loss_of(model(reference.my_part())).backward()
        return reference.gradients(model)

    reference.launched(program, expected=reference.one_device())


@pytest.mark.parametrize("segments", [1, 2, 4])
def test_a_sequence_in_segments(segments: int):
    def program() -> reference.Gradients:
        inner = reference.build()

        class Segmented(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: Tensor) -> Tensor:
                out = checkpoint_sequential(self.inner, segments, x, use_reentrant=False)
                assert isinstance(out, Tensor)
                return out

        model = DistributedDataParallel(Segmented())
        reference.loss_of(model(reference.my_part())).backward()
        return {name.removeprefix("inner."): grad for name, grad in reference.gradients(model).items()}

    reference.launched(program, expected=reference.one_device())


def test_dropout_is_the_same_when_it_is_computed_again():
    """Each rank's random state is its own, and checkpointing puts it back."""

    def program(is_checkpointed: bool) -> reference.Gradients:
        model = nn.Sequential(*reference.build(), nn.Dropout(0.5))
        torch.manual_seed(3)
        x = reference.my_part()
        y = checkpoint(model, x, use_reentrant=False) if is_checkpointed else model(x)
        torch.rand(5)  # time goes on between forward and backward
        reference.loss_of(y).backward()
        return reference.gradients(model)

    plain, checkpointed = (launch(program, on, ranks=3).values for on in (False, True))
    for found, expected in zip(checkpointed, plain, strict=True):
        reference.assert_same(found, expected)
    assert not torch.equal(plain[0]["0.up.weight"], plain[1]["0.up.weight"])
    assert reference.batch().shape[0] % 3  # the parts differ in size as well
