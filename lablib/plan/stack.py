"""Training software as the planner sees it: kernels, memory, overlap.

The same model on the same GPUs takes twice as long in an eager program with unfused attention as in a compiled one. A
stack describes such software in physical terms; there is one record per generation of it, not per published run.

    torch               torch's eager operators one by one (eager/), flash attention: this project's own GPT
    torch-megatron      the same, but one product for queries, keys and values, as in Megatron's tensor parallelism
    megatron-2021       Megatron-LM before flash attention: scores are written out; softmax with its scale and mask is
                        one kernel, so are bias and GELU, and bias, dropout and residual
    megatron-2022       the same a year later: weight gradients are accumulated by their products, and the sums over the
                        tensor axis in backward hide behind these
    megatron-2023       flash attention, no dropout; norms are one kernel; the distributed optimizer communicates after
                        backward and before forward (--overlap-grad-reduce came at the end of that year)
    megatron-deepspeed  the layers of megatron-2021 in DeepSpeed's pipeline: every tensor rank sends the whole message,
                        stages keep their inputs and outputs, ZeRO-1 sums with all-reduces
    fsdp-flash          eager FSDP with the first flash attention; a fused loss, and two metrics of training, each a
                        cross-entropy of the logits (llm-foundry)
    torch-compile-2024  FSDP2 with compiled layers: one kernel between two products; the loss is eager
    torch-compile       the same since 2025: the loss is compiled too (torchtitan)
    fsdp                eager FSDP of torch with its own flash attention; each operator outside of norms and attention
                        is a kernel (torchtitan, torchtune and fms-fsdp without compilation)
    flash-attention     eager programs with the kernels of the flash-attn library: norms with residuals, rotary, loss
                        (its own training code, TinyLlama, nanotron)
    internevo           the same, with gradients of 16 bits and a data axis that does not overlap (XTuner, too)
    transformers-2022   Hugging Face's models before fused attention: scores are scaled, masked and cast one by one
    transformers        the same with flash attention; RMS norms, rotation and loss are sequences of operators
    transformers-deepspeed  the same under DeepSpeed: 16-bit gradients, ZeRO-3 gathers one matrix at a time
    transformers-te     Hugging Face's programs with Transformer Engine's layers: the kernels of megatron-core; the loss
                        is a sequence of operators
    liger               Hugging Face's models with fused norms, rotation, gate, and a loss in chunks without logits
    xla-2023            JAX programs: a chain of cheap operators is one kernel, the host does nothing; attention unfused
    xla                 the same with cuDNN's or Splash attention
    neuronx             the same on Trainium; selective recomputation repeats the core of attention
    llm.c               hand-written kernels with cuDNN's attention and a fused classifier
    megatron-core       Megatron-Core with Transformer Engine: fused norms, the newest attention, gradients accumulated
                        by products, the data axis and messages hidden

Source: Shoeybi et al., 2019, arXiv 1909.08053; Narayanan et al., SC21, arXiv 2104.04473, sections 4.1 and 4.2 (messages
split over tensor ranks, fused kernels); Korthikanti et al., 2022, arXiv 2205.05198; Zhao et al., FSDP, 2023, arXiv
2304.11277; Liang et al., "TorchTitan", 2024, arXiv 2410.06511; Hsu et al., "Liger Kernel", 2024, arXiv 2410.10989; the
programs' own sources (the metrics: mosaicml/llm-foundry, modeling_mpt.py, `use_train_metrics`, and mosaicml/composer,
Trainer._train_microbatch; operators of LlamaRMSNorm, with its casts: huggingface/transformers, modeling_llama.py).
Simplified: one record per generation; versions in between differ by some percent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from lablib.cost.efficiency import RATES
from lablib.errors import find_named
from lablib.signature import Count, NonNegative, NonNegativeInt, OneOf, check_fields

DISPATCHERS = ("alltoall", "deduplicated")


@dataclass(frozen=True, slots=True)
class Stack:
    """One generation of training software."""

    name: str  # its name in the catalogue
    attention: Annotated[str, OneOf(("flash", "unfused"))] = "flash"  # "flash" or "unfused"
    # of flash attention: 1, 2 (written for Ampere), 3 (Hopper) or 4 (Blackwell). On a newer device than its target it
    # reaches a share of the rate (derating.py).
    attention_generation: Count = 2
    has_dropout: bool = False  # whether masks are drawn, stored and applied
    # passes_norm, passes_activation, passes_residual: reads and writes of the tensor, forward and backward, by a norm,
    # by the MLP's activation, and by bias, dropout and residual
    passes_norm: tuple[NonNegative, NonNegative] = (2, 3)
    # of a norm without a mean, where it is not as `passes_norm`
    passes_rms_norm: tuple[NonNegative, NonNegative] | None = None
    passes_rotary: tuple[NonNegative, NonNegative] = (2, 2)  # of the rotation of queries and keys
    passes_scores: tuple[NonNegative, NonNegative] = (2, 3)  # of unfused attention's scores, without dropout
    passes_bfloat16_scores: tuple[NonNegative, NonNegative] = (0, 0)  # more of these with scores in bfloat16
    passes_activation: tuple[NonNegative, NonNegative] = (2, 3)
    passes_residual: tuple[NonNegative, NonNegative] = (3, 1)
    # passes_adapter_input, passes_adapter_output: of a linear layer's input and output, by its adapter of low rank
    # (layer/adapters.py)
    passes_adapter_input: tuple[NonNegative, NonNegative] = (1, 5)
    passes_adapter_output: tuple[NonNegative, NonNegative] = (4, 2)
    # whether every linear layer has an adapter; otherwise queries, keys and values alone, the default of NVIDIA's NeMo
    adapts_all: bool = True
    # tensors of the model's width that are copied around attention to move heads, forward and again backward
    copies: NonNegative = 0
    embeds_by_product: bool = False  # whether an embedding is the product of one-hot rows and the table
    loss_bytes: NonNegative = 20.0  # bytes per logit moved by the loss, forward and backward together
    # loss_saved_bytes, loss_peak_bytes: bytes per logit kept until backward, and temporary in backward
    loss_saved_bytes: NonNegative = 4.0
    loss_peak_bytes: NonNegative = 2.0
    # the same if tensor ranks split the vocabulary; None: the same number
    split_loss_peak_bytes: NonNegative | None = None
    # to widen a weight of 4 bits: bytes moved per weight, kernels per matrix. keeps_widened: whether backward uses the
    # forward pass's result; otherwise it widens again
    widened_bytes: NonNegative = 2.516
    widened_kernels: NonNegative = 1
    keeps_widened: bool = False
    calls_per_kernel: NonNegative = 2.5  # host work per kernel, in eager operators: views, autograd, Python
    # work that selective recomputation repeats: "attention" (its core), "products" (every second one, and all cheap
    # operators), or "all but weights": everything except the products with weights
    selective: Annotated[str, OneOf(("attention", "products", "all but weights"))] = "attention"
    # whether recomputation of a layer ends with the last tensor that backward needs, before the layer's last product:
    # torch's checkpoints with use_reentrant=False since 2.1, and XLA, which removes operations without a use. Eager
    # stacks always do.
    stops_recomputation: bool = False
    # bytes per accumulated and reduced gradient; float16_gradient_bytes for training in float16, narrow_gradient_bytes
    # for products in 8 bits or less
    gradient_bytes: NonNegativeInt = 4
    float16_gradient_bytes: NonNegativeInt = 2
    narrow_gradient_bytes: NonNegativeInt = 4
    extra_gradient_bytes: NonNegativeInt = 0  # of a second copy of each gradient, if they are accumulated in 32 bits
    fused_accumulation: bool = False  # whether a weight's gradient is accumulated inside the product that makes it
    # whether such products return an empty gradient of 16 bits, one kept for each shape of a weight (Transformer
    # Engine's get_dummy_wgrad)
    keeps_dummies: bool = False
    # whether gradients stay from step to step; otherwise ZeRO-3's, and a single rank's, are allocated by every
    # step's first backward pass, when activations are freed
    keeps_gradients: bool = True
    # whether each parameter is updated as soon as it has its gradient, which is then freed
    updates_in_backward: bool = False
    has_master: bool = True  # whether 16-bit parameters have a copy in 32 bits
    has_reduce_scatter: bool = True  # whether ZeRO-1 reduces each gradient to its owner alone
    bucket_bytes: NonNegative = 0.0  # buffers of the data axis's communication
    data_overlap: bool = True  # whether the data axis communicates during compute
    # whether ZeRO-1 gives whole tensors to ranks: each owner's gradients are reduced to it, and its parameters
    # broadcast from it, in separate collectives
    owns_tensors: bool = False
    # whether ZeRO-3 gathers and sums each matrix in a separate collective, not a layer at once
    gathers_matrices: bool = False
    # host work of ZeRO-3 for each matrix that a pass fetches and releases, in starts of an eager operator. DeepSpeed
    # 0.14.4 on a CPU: 13 to 29, with 10 and 5 fetched tensors per layer
    fetch_calls: NonNegative = 0.0
    # whether the tensor axis's sums in backward hide behind the weights' products
    hides_backward_exchange: bool = False
    # how tokens travel to experts: "alltoall", or "deduplicated" as DeepEP's (layer/dispatch.py)
    dispatcher: Annotated[str, OneOf(DISPATCHERS)] = "alltoall"
    # which experts a token visits: "random", or "contiguous": k neighbours, as a benchmark's balanced router chooses
    # them (layer/dispatch.py)
    routing: Annotated[str, OneOf(("random", "contiguous"))] = "random"
    # whether tokens travel while another micro-batch computes, in any schedule (`--overlap-moe-expert-parallel-comm`)
    hides_dispatch: bool = False
    pipeline_overlap: bool = False  # whether messages between stages travel during compute
    splits_messages: bool = True  # whether tensor ranks share a message between stages and gather it there
    keeps_outputs: bool = False  # whether a stage keeps the output of every micro-batch in flight
    # whether the operators are torch's own, one by one, as layer/operators.py lists them; then the passes above do not
    # count. Its precision is the precision of parameters, gradients, compute and communication: in 16 bits the model is
    # cast to them, and with `has_master` the optimizer has copies of parameters and gradients in 32 bits, as in
    # Megatron. It is not autocast.
    is_eager: bool = False
    # of an eager stack: whether queries, keys and values are one product, and the vocabulary is treated as split over
    # ranks even over one, as in Megatron's layers; otherwise three, and torch's own loss
    is_megatron: bool = False
    # of an eager stack without masters: whether training in 16 bits keeps ZeRO-3's shards in 32, as FSDP2's
    # MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32): parameters are cast and gathered in
    # 16 bits, their gradients are cast and summed in 32
    has_wide_shards: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.has_wide_shards and (self.has_master or not self.is_eager):
            raise ValueError(
                "has_wide_shards is for eager stacks without masters, as the shards are the masters: got "
                f'has_master={self.has_master} and is_eager={self.is_eager}; try has_master=False on STACKS["torch"]'
            )


_MEGATRON_2021: dict[str, Any] = {
    "attention": "unfused",
    "has_dropout": True,
    "passes_norm": (2, 4),
    "passes_residual": (3.5, 2.5),
    "copies": 4,
    "has_reduce_scatter": False,
    "data_overlap": False,
}

# Passes at the streaming rate that take as long as one pass of torch's kernels (lablib/cost/efficiency.py).
_SLOWER: Mapping[str, float] = MappingProxyType({kind: 1 / rate.share for kind, rate in RATES.items()})
# In 16-bit widths: the gate's SiLU and product (4 and 7, with the two tensors that a gate adds), two gradients that a
# residual adds. Per logit: a cast (2 and 4 bytes), the logarithm of the softmax (4 and 4), its gradient (4, 8 and 4), a
# cast back (4 and 2).
_EAGER: dict[str, Any] = {
    "passes_norm": (2, 4),
    "passes_activation": (4, 7),
    "passes_residual": (3, 3),
    "passes_rotary": (10, 10),  # cast to 32 bits (3), multiplied (4), cast back (3)
    "loss_bytes": 36,
    "loss_peak_bytes": 8,
    "keeps_gradients": False,
}
# Cast to 32 bits (3), squared (4), their mean (2), multiplied (4), cast back (3), times the weight (2).
UNFUSED_RMS_NORM = (18.0, 37.0)
_HUGGING_FACE: dict[str, Any] = _EAGER | {
    "passes_rms_norm": UNFUSED_RMS_NORM,
    "copies": 1,
    # PEFT: dropout with its mask of one byte (2.5 and 2.5); the scale (2 and 2), a copy of the sum.
    "passes_adapter_input": (3.5, 7.5),
    "passes_adapter_output": (7, 4),
    "calls_per_kernel": 6.0,  # Python modules: 125 ms per micro-step of 7B on one A100 (QwenLM/Qwen, README)
}
# GPT-2 under autocast, in 16-bit widths at the rates of torch's kernels. Norms, powers and losses are in 32 bits, so is
# the residual stream; inputs of products are cast. A norm: read and written (4), cast (3); backward a cast (3), the
# gradients of its input and weights (10). GELU is x^3 (4, and a cast, 3), products and sums (4, 5, 4, 4, 2, 5), tanh
# (4), and a cast (3); in backward each again, x^2, and three gradients that are added.
# Scores: divided (2), masked (2.5), softmax with 32-bit results (3; exponentials limit it), cast (3);
# backward a cast (3), the softmax's gradient (5), masked (2.5), divided (2). torch's softmax takes no bfloat16 for
# 32 bits: a cast before it, a result in 32 bits (1), and the same in backward.
_WIDENED, _MASKED = 3 * _SLOWER["widening"], 2.5 * _SLOWER["mask"]
_SOFTMAX = RATES["_softmax"].bytes_per_element / 2
_HUGGING_FACE_2022: dict[str, Any] = _HUGGING_FACE | {
    **{"attention": "unfused", "copies": 3, "has_dropout": True, "passes_residual": (5, 9)},
    "passes_scores": (2 + _MASKED + _SOFTMAX + 3, _WIDENED + 5 * _SLOWER["_softmax_backward_data"] + _MASKED + 2),
    "passes_bfloat16_scores": (_WIDENED, _SLOWER["_softmax_backward_data"] + 3),
    "passes_norm": (4 * _SLOWER["native_layer_norm"] + 3, _WIDENED + 10 * _SLOWER["native_layer_norm_backward"]),
    "passes_activation": (35 + _WIDENED, 56 + _WIDENED),
    "loss_bytes": 46,  # without its last position: one more copy of the logits, and of their gradient with zeros
}
# AutoGPTQ's layers without its kernels, by torch's operators: per weight the shift of 32 bits (4.5 bytes), a cast to 8
# (5), the mask (2), the zero (2) and the scale (3); 9 operators without a module's calls (AutoGPTQ/AutoGPTQ,
# nn_modules/qlinear/qlinear_cuda_old.py, 9f7d370).
GPTQ: Mapping[str, Any] = MappingProxyType(
    {"widened_bytes": 16.5, "widened_kernels": 9 / _HUGGING_FACE["calls_per_kernel"], "keeps_widened": True}
)
_NARROW: dict[str, Any] = {"gradient_bytes": 2, "narrow_gradient_bytes": 2}
_LIGER: dict[str, Any] = _HUGGING_FACE | {
    **{"passes_norm": (2, 3), "passes_rms_norm": (2, 3), "passes_rotary": (2, 2), "passes_activation": (2, 3)},
    **{"loss_bytes": 8, "loss_peak_bytes": 0, "loss_saved_bytes": 0},
}
_FLASH_ATTN: dict[str, Any] = {
    "passes_norm": (2, 4),
    "passes_residual": (3, 2),
    "loss_bytes": 14,
    "loss_saved_bytes": 2,
    "loss_peak_bytes": 4,
    "keeps_gradients": False,
}

_COMPILED: dict[str, Any] = {
    "passes_norm": (1.5, 3),
    "passes_residual": (1.5, 1),
    "calls_per_kernel": 1.0,
    "selective": "products",
    # Sums are added within the adapters' products.
    "passes_adapter_input": (1, 3),
    "passes_adapter_output": (2, 2),
    "stops_recomputation": True,
    "keeps_gradients": False,
}

_XLA: dict[str, Any] = _COMPILED | {"loss_bytes": 12, "calls_per_kernel": 0}
# aws-neuron/neuronx-distributed, examples/training/llama, fbac349: its selective policy repeats `CoreAttention`.
_NEURONX: dict[str, Any] = _XLA | {"selective": "attention", "stops_recomputation": False}
_DEEPSPEED: dict[str, Any] = _MEGATRON_2021 | {
    **{"extra_gradient_bytes": 2, "bucket_bytes": 2e9, "gathers_matrices": True},
    **{"splits_messages": False, "keeps_outputs": True},
}
# Per logit: the fused loss reads 2 bytes, and again to write 2; each metric casts it (2 and 4 bytes) and
# takes the logarithm of its softmax (4 and 4).
_FSDP_FLASH: dict[str, Any] = {
    **{"attention_generation": 1, "passes_norm": (2, 4), "keeps_gradients": False},
    **{"loss_bytes": 6 + 2 * 14, "loss_saved_bytes": 2, "loss_peak_bytes": 8},
}
_TE: dict[str, Any] = {name: _EAGER[name] for name in ("loss_bytes", "loss_peak_bytes")} | {
    **{"attention_generation": 4, "narrow_gradient_bytes": 2, "keeps_gradients": False},
}
_LLM_C: dict[str, Any] = _NARROW | {
    **{"passes_norm": (1.5, 3), "passes_residual": (1.5, 1), "calls_per_kernel": 1.0, "attention_generation": 4},
    **{"loss_bytes": 8, "loss_saved_bytes": 2, "fused_accumulation": True},
}
_MEGATRON_CORE: dict[str, Any] = {
    **{"attention_generation": 4, "adapts_all": False, "loss_bytes": 12, "calls_per_kernel": 1.25},
    **{"narrow_gradient_bytes": 2, "fused_accumulation": True, "keeps_dummies": True},
    **{"hides_backward_exchange": True, "pipeline_overlap": True},
}
STACKS: Mapping[str, Stack] = MappingProxyType(
    {
        stack.name: stack
        for stack in (
            Stack("torch", is_eager=True, splits_messages=False),
            Stack("torch-megatron", is_eager=True, splits_messages=False, is_megatron=True),
            Stack("megatron-2021", **_MEGATRON_2021),
            Stack("megatron-2022", **_MEGATRON_2021, fused_accumulation=True, hides_backward_exchange=True),
            Stack("megatron-2023", data_overlap=False, fused_accumulation=True, hides_backward_exchange=True),
            Stack("megatron-deepspeed", **_DEEPSPEED),
            Stack("fsdp-flash", **_FSDP_FLASH),
            # Per logit: cast (2 and 4 bytes), the logarithm of the softmax (4 and 4); a gradient of zeros (4) for the
            # softmax's gradient (8 and 4), cast back (4 and 2). Three of these 4-byte tensors exist at once; with a
            # vocabulary split over ranks, torch's loss_parallel() adds and multiplies them one by one: four.
            Stack("torch-compile-2024", **_COMPILED, loss_bytes=36, loss_peak_bytes=8, split_loss_peak_bytes=12),
            # Read for the softmax's maximum and sum, kept; read again for the gradient, which is written.
            Stack("torch-compile", **_COMPILED, loss_bytes=8, loss_saved_bytes=2, loss_peak_bytes=2),
            Stack("fsdp", **_EAGER, selective="products", stops_recomputation=True, split_loss_peak_bytes=12),
            Stack("flash-attention", **_FLASH_ATTN),
            Stack("internevo", **_FLASH_ATTN, **_NARROW, data_overlap=False, owns_tensors=True),
            Stack("transformers-2022", **_HUGGING_FACE_2022),
            Stack("transformers", **_HUGGING_FACE),
            Stack("transformers-deepspeed", **_HUGGING_FACE, **_NARROW, gathers_matrices=True, fetch_calls=16),
            Stack("transformers-te", **_TE),
            Stack("liger", **_LIGER),
            Stack("xla-2023", **_XLA, attention="unfused"),
            Stack("xla", **_XLA, attention_generation=4),
            Stack("neuronx", **_NEURONX, attention_generation=4),
            Stack("llm.c", **_LLM_C),
            Stack("megatron-core", **_MEGATRON_CORE),
        )
    }
)


def find_stack(name: str | Stack) -> Stack:
    """The stack of that name; a `Stack` is returned as it is. Raises ValueError with the nearest names."""
    return find_named("stack", name, STACKS, Stack)
