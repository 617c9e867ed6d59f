"""Predict the time and the memory of one training step of a model on a cluster.

    predict("gpt3-175b", "dgx-a100", Parallel(data=8, tensor=8, pipeline=8), batch=1536)

The arguments are checked once (arguments.py); the formulas (step.py, memory.py) take the `Setup` as valid.
"""

from collections.abc import Sequence
from functools import lru_cache

from lablib.cost.arrays import has_numpy, is_array, np
from lablib.hardware.cluster import Cluster
from lablib.hardware.link import Link
from lablib.models.sizes import GPTConfig
from lablib.models.transformer import Transformer
from lablib.models.transformer_flops import step_flops
from lablib.plan.arguments import possible, setup_of
from lablib.plan.derating import Derating
from lablib.plan.gradient_compression import GradientCompression
from lablib.plan.machine import Machine
from lablib.plan.memory import CATEGORIES, stage_memory
from lablib.plan.optimizers import Optimizer
from lablib.plan.order import PlacedMachine
from lablib.plan.parallel import Parallel
from lablib.plan.prediction import AXES, Prediction
from lablib.plan.recompute import Recompute
from lablib.plan.setup import Setup
from lablib.plan.stack import Stack
from lablib.plan.step import StepTimes, step_of

_FEW = 4  # up to so many stages are computed one by one, which is faster than as arrays


def predict(
    model: str | Transformer | GPTConfig,
    cluster: str | Cluster,
    parallel: Parallel | None = None,
    batch: int = 1,
    *,
    micro_batch: int = 1,
    seq_len: int | None = None,
    precision: str = "bfloat16",
    recompute: str = "none",
    schedule: str = "1f1b",
    optimizer: str | Optimizer = "adamw",
    stack: str | Stack | None = None,
    compression: str | GradientCompression = "none",
    offload: tuple[str, ...] = (),
    trainable: str = "all",
    derating: Derating | None = None,
    host_link: str | Link = "pcie4",
    order: Sequence[str] | None = None,
) -> Prediction:
    """Predict one training step.

    Arguments:
        model: sizes, or a name of the catalogue of published models.
        cluster: a cluster, a name of the catalogue, or a TOML file.
        parallel: the split; one rank by default.
        batch: sequences per step, on all ranks together.
        micro_batch: sequences that go through a stage at once, on one rank of the data axis.
        seq_len: tokens of a sequence; the model's longest by default.
        precision: of the linear layers' products: "float32", "tfloat32", "float16", "bfloat16", "float8", "float4" or
            "int8" (the stacks "torch" and "torch-megatron" do not have the last three).
        recompute: "none", "selective" (attention's core or every second product, as the stack does), "full" (every
            layer), "every k" or "first k" layers.
        schedule: of the pipeline, one of `lablib.pipeline.closed_form.WITH_CLOSED_FORM`.
        optimizer: a name, or a record of optimizers.py.
        stack: the software, a name or a record of stack.py; None: the usual one for the device today
            (default_stack.py). The result names it.
        compression: of the data axis's gradients, a name or a record of gradient_compression.py.
        offload: any of "optimizer", "activations" and "parameters" (ZeRO-3's, with gradients and optimizer): kept in
            the host's memory.
        trainable: "all"; "lora": the model's own weights have no gradients; "qlora": and 4 bits each (Dettmers et al.,
            2023, arXiv 2305.14314), which every pass of a layer widens.
        derating: losses of real machines; `lablib.plan.derating.IDEAL` predicts measurements of the simulator.
        host_link: the link between device and host.
        order: the axes from the one with distant ranks to the one with neighbours (order.py); None: pipeline, data,
            context, tensor. "expert" may be among them, and then takes its ranks from the data axis.

    Raises ValueError: unknown names, splits that do not divide, sizes below 1, an order without an axis.
    """
    setup = setup_of(
        *(model, cluster, parallel, batch, micro_batch, seq_len, precision, recompute, schedule, optimizer, stack),
        *(compression, offload, trainable, derating, host_link),
    )
    return prediction_of(possible(setup, order))


def prediction_of(setup: Setup) -> Prediction:
    """The prediction of one possible plan."""
    step = step_of(setup)
    step.check_takes_time()
    model, machine, policy = setup.model, setup.machine, setup.recompute
    device, tokens = machine.device, setup.batch * setup.seq_len
    trains = setup.has_weight_gradients
    useful, recomputed = _token_flops(model, setup.seq_len, policy, machine.stack, setup.layers, trains)
    return Prediction(
        name=model.name,
        cluster=machine.cluster.name,
        parallel=setup.parallel,
        num_gpus=setup.num_ranks,
        batch=setup.batch,
        micro_batch=setup.micro_batch,
        num_microbatches=setup.num_microbatches,
        seq_len=setup.seq_len,
        schedule=setup.schedule,
        recompute=policy.name,
        precision=machine.precision,
        step_time_s=step.step_s,
        model_flops=tokens * useful,
        hardware_flops=tokens * (useful + recomputed),
        peak_flops_per_s=machine.peak_flops_per_s,
        parts=parts_of(step),
        communication={name: tuple(getattr(step, name)[:2]) for name in AXES},
        bubble_fraction=step.bubble_fraction,
        memory=_stages(setup, step),
        memory_limit_bytes=device.memory_bytes - machine.derating.driver_bytes,
        cached_share=machine.derating.cached_share,
        driver_bytes=machine.derating.driver_bytes,
        power_w=device.power_w,
        software=setup.software,
        notes=_order_note(machine),
        setup=setup,
    )


def _order_note(machine: Machine) -> tuple[str, ...]:
    if not isinstance(machine, PlacedMachine):
        return ()
    sizes = dict(machine.sizes)
    axes = [f"{axis} {sizes[axis]}" for axis in machine.order if sizes[axis] > 1]
    return (f"Order of the axes, the last with neighbouring ranks: {', '.join(axes)}.",) if axes else ()


def _stages(setup: Setup, step: StepTimes) -> tuple[dict[str, float], ...]:
    """Bytes by category of each stage: many stages at once, as an array of ranks, where numpy is imported."""
    if setup.pipeline <= _FEW or not has_numpy():
        stages = [stage_memory(setup, step, rank) for rank in range(setup.pipeline)]
    else:
        memory = stage_memory(setup, step, np.arange(setup.pipeline))
        columns = [each.tolist() if is_array(each) else [each] * setup.pipeline for each in memory]
        stages = zip(*columns, strict=True)
    return tuple(dict(zip(CATEGORIES, stage, strict=True)) for stage in stages)


@lru_cache(maxsize=1024)
def _token_flops(
    model: Transformer, seq_len: int, policy: Recompute, stack: Stack, layers: float, has_weight_gradients: bool
) -> tuple[float, float]:
    """FLOPs per token of a step, and of recomputation; cached, as a search repeats few arguments."""
    useful = step_flops(model, 1, seq_len, has_weight_gradients=has_weight_gradients)
    return useful, policy.recomputed_flops(model, stack, layers, seq_len)


def parts_of(step: StepTimes) -> dict[str, float]:
    """The step as a sum, in the order of a waterfall: compute of the layers, then the additions to it.

    Kernels that run a second time are one part. The parts of the axes and of the host's link are exactly the exposed
    seconds of `Prediction.communication`, for all passes.
    """
    recomputed = step.repeated
    kernels_s = recomputed.compute_s + recomputed.communication_s
    return {
        "products": step.products_s - recomputed.product_s,
        "attention": step.attention_s - recomputed.attention_s,
        "memory-bound kernels": step.memory_s - recomputed.memory_s,
        "launches": step.launch_s - (step.recompute_s - kernels_s),
        "recomputation": step.recompute_s - recomputed.communication_s,
        "tensor axis": step.tensor.exposed_s,
        "context axis": step.context.exposed_s,
        "expert axis": step.expert.exposed_s,
        "embedding, head, loss": step.ends_s,
        "bubble and messages": step.bubble_s,
        "data axis": step.data.exposed_s,
        "packing": step.data.copies_s,
        "host link": step.host.exposed_s,
        "optimizer": step.optimizer_s,
        "fixed": step.fixed_s,
    }
