"""Optimizer in backward: each parameter is updated as soon as its gradient is complete, and the gradient is freed.

Usually backward fills all gradients, b bytes per parameter, and then the optimizer reads them. A hook on each parameter
can update it separately, directly after its gradient was accumulated:

    peak without:  parameters + states + gradients of all + temporaries of the step of all
    peak with:     parameters + states + gradients of the few in memory at a time + temporaries of the largest

Not possible then: steps that need all gradients at once (clipping by the norm of all, loss scaling that skips a step,
accumulation over micro-batches), and the batching of kernels over parameters.

Cost: the same FLOPs; a launch for each parameter instead of one for all.
Source: Lv et al., "Full Parameter Fine-tuning for Large Language Models with Limited Resources" (LOMO), 2023, arXiv
2306.09782, section 3.1; PyTorch's tutorial on optimizer steps in backward (`register_post_accumulate_grad_hook`).
Simplified: one optimizer for each parameter; a schedule sets the rates of all of them.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from lablib.signature import checked


class InBackward:
    """Optimizers that run inside backward. `optimizers` has one per parameter, in order; `close` ends it."""

    def __init__(self, optimizers: dict[Tensor, torch.optim.Optimizer]):
        self.optimizers = list(optimizers.values())
        self._handles = [
            param.register_post_accumulate_grad_hook(_step_and_free(optimizer))
            for param, optimizer in optimizers.items()
        ]

    def close(self) -> None:
        """Remove the hooks: gradients are kept again, and no parameter is updated in backward."""
        for handle in self._handles:
            handle.remove()


@checked
def step_in_backward(
    make_optimizer: Callable[[list[Tensor]], torch.optim.Optimizer], params: Iterable[Tensor]
) -> InBackward:
    """From now on, `backward` updates each of these parameters and frees its gradient.

        running = step_in_backward(lambda params: AdamW(params, lr=1e-3), model.parameters())
        loss.backward()

    Arguments:
        make_optimizer: the optimizer of one parameter, given as a list; of this package or of torch.
        params: frozen ones are left out.

    Raises ValueError: a gradient is there already: it would be stepped with the next one added to it.
    """
    trained = [param for param in params if param.requires_grad]
    if any(param.grad is not None for param in trained):
        raise ValueError("gradients must be None before step_in_backward: got one; call zero_grad() first.")
    return InBackward({param: make_optimizer([param]) for param in trained})


def _step_and_free(optimizer: torch.optim.Optimizer) -> Callable[[Tensor], None]:
    def hook(param: Tensor) -> None:
        optimizer.step()
        param.grad = None

    return hook
