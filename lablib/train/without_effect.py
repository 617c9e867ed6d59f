"""Fields of a training configuration that a user has set and that change nothing, each with the reason.

    found = without_effect(config, ["parallel.bucket_bytes"])
    ["parallel.bucket_bytes: fully_shard and ZeRO stage 3 reduce unit by unit"]

A field has an effect only with some values of others: a momentum with SGD, a bucket with gradients that are reduced in
buckets. Nothing is refused, as a file is often shared by several runs.
"""

from collections.abc import Iterable, Iterator

from lablib.train.config import TrainConfig


def without_effect(config: TrainConfig, given: Iterable[str]) -> list[str]:
    """Sentences on the fields among `given` ("section.field") without effect; `config` is filled in for its ranks."""
    reasons = dict(_reasons(config))
    return [f"{name}: {reasons[name]}" for name in given if name in reasons]


def _reasons(config: TrainConfig) -> Iterator[tuple[str, str]]:
    axes, rate, precision, health = config.parallel, config.optimizer, config.precision, config.health
    is_mesh = axes.is_mesh
    if is_mesh:
        yield "parallel.bucket_bytes", "a mesh reduces the gradients of pieces, units or 25 MiB"
    elif axes.zero_stage == 3 or (axes.zero_stage and axes.library == "torch"):
        yield "parallel.bucket_bytes", "fully_shard and ZeRO stage 3 reduce unit by unit"
    elif axes.zero_stage == 0 and axes.data == 1:
        yield "parallel.bucket_bytes", "one replica reduces nothing"
    if axes.pipeline == 1:
        yield "parallel.schedule", "there is one stage"
    if config.model.num_experts == 0:
        yield "model.num_active", "the model has no experts"
    if rate.name != "sgd":
        yield "optimizer.momentum", f"{rate.name} has none"
    if rate.name == "sgd":
        yield "optimizer.betas", "sgd has none"
    if rate.name in ("sgd", "lion"):
        yield "optimizer.eps", f"{rate.name} has none"
    if rate.schedule != "wsd":
        yield "optimizer.num_decay", f"it is for wsd, and the schedule is {rate.schedule}"
    if not rate.schedule.startswith("deepspeed"):
        yield "optimizer.first", f"it is for deepspeed-*, and the schedule is {rate.schedule}"
    if rate.schedule == "constant" or rate.schedule.startswith("deepspeed"):
        yield "optimizer.final", f"it is for linear, cosine and wsd, and the schedule is {rate.schedule}"
    if rate.schedule == "constant":
        yield "optimizer.schedule_steps", "the schedule is constant"
    dynamic = ("initial_scale", "scale_interval", "hysteresis", "min_scale", "max_scale")
    for name in ("loss_scale", *dynamic):
        if precision.products != "float16":
            yield f"precision.{name}", f"{precision.products} needs no loss scale"
        elif precision.loss_scale and name in dynamic:
            yield f"precision.{name}", f"the scale is {precision.loss_scale:g} all the time"
    if not is_mesh and axes.data == axes.expert == 1:
        yield "monitor.communication", "one rank communicates with none"
    if not config.checkpoint.folder:
        for name in ("every", "keep", "asynchronous", "resume"):
            yield f"checkpoint.{name}", "there is no checkpoint.folder"
    for name in ("num_deviations", "window", "warm_up", "most_skips"):
        if health.policy == "off" or (health.policy == "stop" and name == "most_skips"):
            yield f"health.{name}", f"health.policy is {health.policy}"
    if not health.rolls_back:
        yield "health.most_roll_backs", "nothing is rolled back"
        yield "health.skip_batches", "nothing is rolled back"
    if not health.drift_every:
        yield "health.drift", "health.drift_every is 0"
