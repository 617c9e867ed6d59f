"""Adapters of low rank (LoRA) on a layer's linear layers: the memory traffic of their kernels next to each product.

    y = x W + s dropout(x) A B        A of [K, r], B of [r, N]; W stays as it is

A and B are so narrow that their products read and write K or N numbers per row, and take the time of the bytes:

    pass        on the K side                                   on the N side
    forward     x read by A                                     B's output written; the sum: two read, one written
    backward    x read for A's gradient; A's part of x's        y's gradient read for B's gradient, and for B's input
                gradient written; the sum: two read, one
                written
    PEFT adds   dropout and its mask, each way                  the scale, each way; the sum is copied to its dtype
    compiled    the sum is added within the product             the same

Legend: R rows, K and N widths of a linear layer, r rank (8 to 64).

Source: Hu et al., "LoRA", 2021, arXiv 2106.09685, section 4.1; the operators of huggingface/peft (tuners/lora/layer.py,
`Linear.forward`, with lora_dropout) and pytorch/torchtune (modules/peft/lora.py); NVIDIA/NeMo, its recipes' `peft`
(target_modules).
Simplified: every linear layer of attention and of a dense MLP has one, on the layer's product as the stack has it;
experts and routers have none. Tensors of r numbers per row, and the launches of the kernels, are not counted:
`calls_per_kernel` of Hugging Face's programs was measured with adapters.
"""

from collections.abc import Iterable

from lablib.plan.layer.op import FORWARD, INPUT, PRODUCT, Cut, Op

HEADS = ("queries, keys, values", "queries", "keys, values")
ADAPTED = (*HEADS, "output", "MLP up", "MLP down")


def with_adapters(cut: Cut, ops: Iterable[Op]) -> list[Op]:
    """A layer's operators without gradients of its weights, and with adapters.

    The adapter comes after its product, so recomputation reaches the last product of a layer.
    """
    stack, width, found = cut.machine.stack, cut.machine.width, []
    names = ADAPTED if stack.adapts_all else HEADS
    for op in ops:
        if op.phase not in (FORWARD, INPUT):
            continue
        has_adapter = op.kind == PRODUCT and op.name in names
        found.append(op._replace(is_late=False) if has_adapter else op)
        if not has_adapter or op.phase == INPUT:
            continue
        rows, n, k, count, *_ = op.shape
        for number, phase in enumerate((FORWARD, INPUT)):
            numbers = k * stack.passes_adapter_input[number] + n * stack.passes_adapter_output[number]
            found.append(Op("adapter", phase, size_bytes=rows * count * numbers * width, kernels=0, times=op.times))
    return found
