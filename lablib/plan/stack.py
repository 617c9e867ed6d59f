"""The software a run is made with, as a planner sees it: which kernels it has, what it keeps, what it overlaps.

The same model on the same GPUs takes twice as long in an eager program with unfused attention as in a compiled one. A
stack describes such software by what it does, in physical terms; there is one record a generation of it, not one a
published run.

    torch              torch's eager operators, one kernel each, flash attention: what this project's own GPT runs
    megatron-2021      Megatron-LM and Megatron-DeepSpeed before flash attention: scores are written out, softmax with
                       its scale and mask is one kernel, bias and GELU and bias, dropout and residual are one each
    fsdp-flash         eager FSDP with flash attention and a fused norm (llm-foundry)
    torch-compile      FSDP2 with compiled layers: everything between two products is one kernel (torchtitan)
    transformer-engine Megatron-Core with Transformer Engine: fused norms, flash attention, gradients of weights
                       accumulated by the product itself, communication of the data axis hidden

Source: Shoeybi et al., 2019, arXiv 1909.08053; Korthikanti et al., 2022, arXiv 2205.05198; Liang et al., "TorchTitan",
2024, arXiv 2410.06511; Narayanan et al., SC21, arXiv 2104.04473, section 4.2 (fused kernels).
Simplified: one record for each generation; versions in between differ by some percent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lablib.errors import unknown_name


@dataclass(frozen=True, slots=True)
class Stack:
    """One generation of training software.

    Attributes:
        name: the catalogue's.
        attention: "flash" or "unfused".
        has_dropout: whether masks are drawn, stored and applied.
        passes_norm, passes_activation, passes_residual: how often the tensor at hand is read or written forward and
            backward by a norm, by the MLP's activation, and by bias, dropout and residual.
        copies: passes over a tensor of the model's width for transposes and copies around attention, forward.
        kernels_forward: kernels of a dense layer forward, of the host's point of view (each is one dispatch).
        dispatch_share: how long the host takes to start one of them, as a share of an eager operator's time.
        gradient_bytes: of a number of a gradient that is accumulated over micro-batches and reduced.
        data_overlap: whether gradients (and with sharding parameters) of the data axis travel during compute.
        tensor_overlap: share of the tensor axis's communication that hides behind products.
        pipeline_overlap: whether messages between stages travel during compute.
        fused_accumulation: whether a weight's gradient is added up inside the product that makes it.
        loss_bytes: bytes moved for one logit by the loss, forward and backward together.
    """

    name: str
    attention: str = "flash"
    attention_generation: int = 2
    has_dropout: bool = False
    passes_norm: tuple[float, float] = (2, 3)
    passes_activation: tuple[float, float] = (2, 3)
    passes_residual: tuple[float, float] = (3, 1)
    copies: float = 0
    kernels_forward: int = 20
    dispatch_share: float = 1.0
    gradient_bytes: int = 4
    float16_gradient_bytes: int = 2
    narrow_gradient_bytes: int = 4
    extra_gradient_bytes: int = 0
    bucket_bytes: float = 0.0
    keeps_outputs: bool = False
    loss_kept_bytes: float = 4.0
    loss_peak_bytes: float = 2.0
    hides_backward_exchange: bool = False
    data_overlap: bool = True
    tensor_overlap: float = 0.0
    pipeline_overlap: bool = False
    fused_accumulation: bool = False
    loss_bytes: float = 20.0
    has_reduce_scatter: bool = True
    selective: str = "attention"
    splits_messages: bool = True
    selective_saved: float = 1.0
    has_master: bool = True


STACKS: Mapping[str, Stack] = MappingProxyType(
    {
        stack.name: stack
        for stack in (
            Stack("torch", copies=4, gradient_bytes=2, data_overlap=True),
            Stack(
                "megatron-2021",
                attention="unfused",
                has_dropout=True,
                passes_norm=(2, 4),
                passes_residual=(3.5, 2.5),
                copies=4,
                kernels_forward=30,
                data_overlap=False,
                has_reduce_scatter=False,
            ),
            Stack(
                "megatron-2022",
                attention="unfused",
                has_dropout=True,
                passes_norm=(2, 4),
                passes_residual=(3.5, 2.5),
                copies=4,
                kernels_forward=30,
                data_overlap=False,
                fused_accumulation=True,
                hides_backward_exchange=True,
                has_reduce_scatter=False,
            ),
            Stack(
                "megatron-deepspeed",
                attention="unfused",
                has_dropout=True,
                passes_norm=(2, 4),
                passes_residual=(3.5, 2.5),
                copies=4,
                kernels_forward=30,
                data_overlap=False,
                splits_messages=False,
                extra_gradient_bytes=2,
                bucket_bytes=2e9,
                keeps_outputs=True,
                has_reduce_scatter=False,
            ),
            Stack(
                "fsdp-flash",
                attention_generation=1,
                passes_norm=(2, 4),
                passes_residual=(3, 1),
                kernels_forward=20,
                loss_bytes=16,
            ),
            Stack(
                "torch-compile",
                selective="products",
                selective_saved=0.6,
                passes_norm=(1.5, 3),
                passes_residual=(1.5, 1),
                kernels_forward=12,
                dispatch_share=0.4,
                loss_bytes=12,
            ),
            Stack(
                "megatron-core",
                attention_generation=4,
                narrow_gradient_bytes=2,
                passes_residual=(3, 1),
                kernels_forward=16,
                dispatch_share=0.5,
                tensor_overlap=0.0,
                pipeline_overlap=True,
                fused_accumulation=True,
                hides_backward_exchange=True,
                loss_bytes=12,
            ),
        )
    }
)


def find_stack(name: str | Stack) -> Stack:
    """The stack of that name; a `Stack` is returned as it is. Raises ValueError with the nearest names."""
    if isinstance(name, Stack):
        return name
    if name not in STACKS:
        raise unknown_name("stack", name, list(STACKS))
    return STACKS[name]
