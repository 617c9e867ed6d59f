"""Arguments of the predictor for a row: every convention is a numbered rule.

C1 to C19 are listed here (C5 is applied in row_software.py, C4, C6 and C12 to C19 in software.py, C1, C8 and C9 in
splits.py), A1 to A7 in architecture.py, M1 to M6 in machine.py.

    C1  Ranks: dp, tp, pp, cp as stated; dp not stated is gpus / (tp pp cp). Their product must be the number of GPUs.
        Experts: ep x etp divides the ranks of a stage. etp not stated: experts are split as attention is, over data and
        context ranks, and the rest of ep over the tensor ranks.
    C2  Batch: global; otherwise local x dp; otherwise micro x grad_accum x dp.
    C3 Micro-batch: stated; otherwise batch / (dp x grad_accum); otherwise, if a local batch is stated, one micro-batch
        without a pipeline, and with torchtitan's one per piece of it, pp x vpp (pipeline_parallel_microbatches'
        default); other pipelines' are open (C11).
    C4 Precision: the first of fp4, fp8, tf32, bf16, fp16, fp32, int8 in the text before any bracket; a text with both
        16-bit kinds, or none, is bfloat16 if the GPU has it, otherwise float16. But "bf16/fp16" of BLOOM's topology
        search is float16 unless its notes say "load-balanced": from there on its text has the BF16 optimizer.
    C5  Software: a generation of lablib/plan/stack.py, by the first part that applies:
        C5a The row's `stack`.
        C5b Its name in the row's `software`, title, address or notes, without programs that it is compared with.
            Programs with a generation of their own: PROGRAMS of row_software.py. torch's FSDP programs (torchtitan,
            torchtune, fms-fsdp, AutoModel): "torch-compile" if their notes say "compile" or they have FP8 (which is
            faster only with it), otherwise "fsdp". "torch.compile" or "eager" in the notes of another program that is
            not Megatron: the same two. Compiled programs of 2024 or earlier: "torch-compile-2024". Hugging Face's
            models: "transformers", to 2022 and without flash attention "transformers-2022", with DeepSpeed
            "transformers-deepspeed", with Transformer Engine's layers "transformers-te". "eager" in the notes of other
            programs to 2022: "transformers-2022". Megatron and software built on it, on GPUs before Hopper:
            "megatron-deepspeed" if DeepSpeed, BLOOM or vTrain (which measured it) is named; "megatron-core" if
            Megatron-Core, Megatron-Bridge or NeMo is named, unless its date is earlier.
        C5c The usual software (default_stack.py) at the row's `date`, or the latest year in title and address (arXiv
            numbers among them), or in its notes; on Hopper and later GPUs 2023 at the earliest. "flash attention" in
            the text is 2023 at the earliest, without it ("no flash attention") 2022 at the latest.
        C5d Megatron without a date on Hopper and later GPUs: today's, as older software never ran on them.
        C5e Unknown: the usual software today. A row without a source is taken for Megatron.
    C6  Recomputation: the first word stated ("full (use_checkpoint=true ...)" is full; "none (moe_act)" is none:
        single modules are not counted; other words: synonyms.py). Not stated is none for Megatron since 2023: flash
        attention keeps no scores, and NVIDIA's recipes recompute nothing but offload to host memory if needed
        (NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs/llama, 00919dc). Otherwise it is open (C11).
    C7 Schedule: vpp > 1 is interleaved with that many chunks. "interleaved" without vpp: 2 chunks if a local batch is
        stated (torchtitan's default), otherwise open. A pipeline with neither: 1F1B. A V has 2 pieces on each stage.
    C8  Sharding: fsdp as named by torch (FULL_SHARD: ZeRO-3; SHARD_GRAD_OP: ZeRO-3 that keeps the parameters gathered;
        HYBRID_SHARD: within a node) or, as a number, the ranks of Megatron-FSDP's sharding group; 0, "none"
        or false is not stated. Otherwise zero_stage; otherwise 1 for Megatron since 2023 (its distributed
        optimizer), 0 for others. zero_shard_group: the ranks that split its states; not stated: the data axis.
        torchtitan keeps ZeRO-3's parameters gathered in a pipeline (its default).
    C9 Sequence parallelism: stated; otherwise on with tensor parallelism, except for Megatron before flash attention,
        which did not have it.
    C10 Notes with the word "LoRA" or "QLoRA" (not "no LoRA", nor "exploration") train adapters only.
    C11 Open settings (micro-batch, chunks, recomputation) are assumed to be tuned: of all choices that divide, the
        fastest with a predicted memory that fits the GPU. `cases_of` returns all; score.py takes that one.
    C12 Dispatcher: DeepEP and HybridEP send a token once to each node and rank ("deduplicated"); others, or none
        stated, once for each of its experts. ep_overlap: exchanges overlap with another micro-batch. The "balanced
        router" of AutoModel's benchmarks sends a token to neighbouring experts.
    C13 Optimizer: the name in the text; AdamW if not stated. Other texts are refused.
    C14 Offload: "optimizer", "activations" and "parameters" in the text of `offload` are kept on the host. A text
        without an object ("cpu", "true") means the optimizer, as in ZeRO-Offload. Others are refused.
    C15 Masters: none, and gradients and moments of 16 bits, where the notes say so ("no masters", "all of the model in
        bf16").
    C16 fms-fsdp sums its gradients in 16 bits (its fms_fsdp/policies/mixed_precision.py: reduce_dtype of bfSixteen).
    C17 Gradients are added by a kernel of their own where the notes say "no fused gradient accumulation".
    C18 "optimizer step in backward" in the notes: no gradient is kept. "chunked cross-entropy": the loss needs no
        temporary tensor of all logits.
    C19 RMS norms of fms-fsdp and torchtune, where eager, are sequences of operators (fms/modules/layernorm.py,
        torchtune/modules/rms_norm.py), not one kernel. "TE" in the notes of one of torch's programs, without the name
        of another attention, is Transformer Engine's attention. "no dropout" in the notes: no masks.
        "GPTQ": 4-bit weights are widened by AutoGPTQ's operators. "one-hot embedding": an embedding is a product.

A row that these rules cannot interpret raises ValueError, and is reported as skipped with that reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from lablib.hardware import Cluster
from lablib.models import Transformer
from lablib.pipeline.closed_form import V_SHAPED
from lablib.plan.parallel import Parallel
from lablib.plan.stack import Stack, find_stack
from lablib.validation.architecture import transformer_of
from lablib.validation.machine import cluster_of
from lablib.validation.row_software import is_torchs, stack_of
from lablib.validation.rows import PublishedRow
from lablib.validation.software import offload_of, optimizer_of, precision_of, recompute_of, stack_as_stated
from lablib.validation.splits import data_ranks, parallel_of
from lablib.validation.synonyms import is_named, schedule_named

MICRO_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments of one prediction. Attributes as in `predict`."""

    model: Transformer
    cluster: Cluster
    parallel: Parallel
    batch: int
    micro_batch: int
    seq_len: int
    precision: str
    recompute: str
    schedule: str
    optimizer: str
    stack: str | Stack
    trainable: str
    offload: tuple[str, ...]

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `predict`."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a step on one rank of the data axis."""
        return self.batch // (self.parallel.data * self.micro_batch)


def cases_of(row: PublishedRow) -> tuple[Case, ...]:
    """All the runs that a row may describe: one, or several if a setting is open. ValueError: the reason for none."""
    cluster = cluster_of(row)
    stack = stack_of(row, cluster)
    data = data_ranks(row)
    if row.parallel.get("ep", 1) > 1 and not _may_have_experts(row):
        raise ValueError(f"ep is {row.parallel['ep']}, but no experts are stated and the model's name is not known")
    batch = batch_of(row, data)
    if batch % data:
        raise ValueError(f"the batch must be a multiple of dp: got {batch} and {data}")
    case = Case(
        model=transformer_of(row, pads_vocabulary="megatron" in stack),
        cluster=cluster,
        parallel=parallel_of(row, data, stack, cluster),
        batch=batch,
        micro_batch=1,
        seq_len=row.model["seq"],
        precision=precision_of(row, cluster),
        recompute="none",
        schedule=_schedule(row),
        optimizer=optimizer_of(row),
        stack=stack_as_stated(row, stack),
        trainable=next((kind for kind in ("qlora", "lora") if is_named(row.text("notes"), kind)), "all"),
        offload=offload_of(row),
    )
    if not (choices := tuple(_choices(row, case))):
        raise ValueError(
            f"model.layers must have a multiple of pp that can be interleaved: got {case.model.num_layers} layers, "
            f"{case.parallel.pipeline} stages and {case.batch // case.parallel.data} sequences per replica; state vpp"
        )
    return choices


def _choices(row: PublishedRow, case: Case) -> Iterator[Case]:
    """Rule C11."""
    chunk_choices = _chunks(row, case)
    for chunks, recompute in product(chunk_choices, recompute_of(row, find_stack(case.stack).name)):
        parallel = replace(case.parallel, chunks=chunks)
        schedule = "1f1b" if chunks == 1 and case.schedule == "interleaved" else case.schedule
        if chunks > 1 and schedule == "1f1b":
            schedule = "interleaved"
        for micro_batch in _micro_batches(row, case, parallel.pipeline * chunks):
            choice = replace(case, micro_batch=micro_batch, parallel=parallel, recompute=recompute, schedule=schedule)
            # Interleaving takes micro-batches in rounds of p.
            if chunks == 1 or len(chunk_choices) == 1 or choice.num_microbatches % parallel.pipeline == 0:
                yield choice


def batch_of(row: PublishedRow, data: int) -> int:
    """Rule C2: sequences in a step, all ranks."""
    batch = row.batch
    if "global" in batch:
        return batch["global"]
    local = batch.get("local") or batch["micro"] * batch["grad_accum"]
    return local * data


def _micro_batches(row: PublishedRow, case: Case, pieces: int) -> tuple[int, ...]:
    """Rule C3, for a pipeline of `pieces`; if nothing is stated, the sizes that divide a replica's batch."""
    batch, local = row.batch, case.batch // case.parallel.data
    if "micro" in batch:
        choices = (batch["micro"],)
    elif "grad_accum" in batch:
        choices = (local // batch["grad_accum"],)
    elif "local" in batch and (pieces == 1 or is_torchs(row)):
        choices = (max(1, local // pieces),)
    else:
        choices = tuple(size for size in MICRO_BATCHES if local % size == 0)
    if choices[0] < 1 or local % choices[0]:
        raise ValueError(f"the batch of a replica must be a multiple of the micro-batch: got {local} and {choices[0]}")
    return choices


def _schedule(row: PublishedRow) -> str:
    """Rule C7, without the chunks."""
    if row.parallel.get("pp", 1) == 1:
        return "1f1b"
    name = schedule_named(row.text("schedule"))
    return "interleaved" if name == "1f1b" and row.parallel.get("vpp", 1) > 1 else name


def _chunks(row: PublishedRow, case: Case) -> tuple[int, ...]:
    """Rule C7: the stated chunks, or those that divide the layers of a stage."""
    if case.parallel.pipeline == 1:
        return (1,)
    if case.schedule in V_SHAPED:
        return (2,)
    if "vpp" in row.parallel:
        return (row.parallel["vpp"],)
    if case.schedule == "interleaved" and "local" in row.batch:
        return (2,)
    is_open = case.schedule == "interleaved" or "vpp not stated" in row.text("notes")
    if not is_open:
        return (1,)
    layers = case.model.num_layers // case.parallel.pipeline
    return tuple(chunks for chunks in range(1, layers + 1) if layers % chunks == 0)


def _may_have_experts(row: PublishedRow) -> bool:
    if "experts" in row.model:
        return True
    try:
        return transformer_of(row, pads_vocabulary=False).experts is not None
    except ValueError:
        return True  # the error is raised where the model is made
