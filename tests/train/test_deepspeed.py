"""A DeepSpeed configuration means for training what DeepSpeed means by it."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.batches import deepspeed_warmup
from lablib.train import TrainConfig, deepspeed_tables, parse_config, read_deepspeed_training

BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def config_of(values: dict[str, Any], ranks: int = 1, **tables: Any) -> TrainConfig:
    return parse_config(deepspeed_tables({"train_batch_size": 64, **values}, tables, ranks).record)


def test_a_whole_file_has_deepspeeds_meaning():
    values: dict[str, Any] = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.5}
    values |= {"steps_per_print": 7, "wall_clock_breakdown": True}
    values["optimizer"] = {"type": "Adam", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-6}}
    warmup = {"warmup_min_lr": 1e-4, "warmup_max_lr": 1e-3, "warmup_num_steps": 20, "warmup_type": "linear"}
    values["scheduler"] = {"type": "WarmupLR", "params": warmup}
    stage = {"stage": 2, "overlap_comm": True, "contiguous_gradients": True, "cpu_offload": False}
    values["zero_optimization"] = {**stage, "reduce_bucket_size": 2e8, "allgather_bucket_size": 2e8}
    scale = {"loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 500, "hysteresis": 3, "min_loss_scale": 2}
    config = config_of({**values, "fp16": {"enabled": True, **scale}}, ranks=8)
    assert (config.data.batch_size, config.data.micro_batch) == (64, 4)
    optimizer, precision = config.optimizer, config.precision
    assert (optimizer.name, optimizer.lr, optimizer.betas, optimizer.eps) == ("adamw", 1e-3, (0.9, 0.95), 1e-6)
    assert (optimizer.weight_decay, optimizer.max_norm) == (0, 0.5)
    assert (optimizer.schedule, optimizer.first, optimizer.num_warmup) == ("deepspeed-linear", pytest.approx(0.1), 20)
    assert (config.parallel.zero_stage, config.parallel.bucket_bytes) == (2, 400_000_000)
    assert (precision.products, precision.master, precision.loss_scale) == ("float16", True, 0)
    assert (precision.initial_scale, precision.scale_interval) == (4096, 500)
    assert (precision.hysteresis, precision.min_scale, precision.max_scale) == (3, 2, math.inf)
    assert (config.monitor.every, config.monitor.breakdown) == (7, True)


def test_missing_fields_have_deepspeeds_defaults():
    config = config_of({"fp16": {"enabled": True}, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 1}})
    precision, optimizer = config.precision, config.optimizer
    assert (precision.initial_scale, precision.scale_interval) == (2**16, 1000)
    assert (precision.hysteresis, precision.min_scale) == (2, 1)
    assert (optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay) == (1e-3, (0.9, 0.999), 1e-8, 0)
    assert optimizer.max_norm == math.inf  # gradient_clipping 0
    assert config.parallel.bucket_bytes == 2 * 500_000_000  # numbers of two bytes
    assert config_of({}).parallel.bucket_bytes == 4 * 500_000_000


@given(
    micro=st.integers(1, 16),
    steps=st.integers(1, 16),
    replicas=st.integers(1, 16),
    tensor=st.sampled_from([1, 2]),
    given_=st.sets(st.sampled_from(BATCHES), min_size=1),
)
def test_two_of_the_batch_sizes_give_the_third_and_one_of_the_first_two_is_enough(
    micro, steps, replicas, tensor, given_
):
    sizes = dict(zip(BATCHES, (micro * steps * replicas, micro, steps), strict=True))
    values: dict[str, Any] = {name: sizes[name] for name in given_}
    ranks, tables = replicas * tensor, {"parallel": {"tensor": tensor}}
    if given_ == {BATCHES[2]}:
        with pytest.raises(ValueError, match="must be given: got neither"):
            deepspeed_tables(values, tables, ranks)
        return
    data = parse_config(deepspeed_tables(values, tables, ranks).record).data
    wanted_steps = steps if BATCHES[2] in given_ or len(given_) == 2 else 1
    if given_ == {BATCHES[0]}:  # one micro-batch per rank
        assert (data.batch_size, data.micro_batch) == (sizes[BATCHES[0]], micro * steps)
    else:
        assert (data.batch_size, data.micro_batch) == (micro * wanted_steps * replicas, micro)


@given(batch=st.integers(1, 200), micro=st.integers(1, 20), steps=st.integers(1, 20), ranks=st.integers(1, 8))
def test_batch_sizes_that_do_not_agree_are_refused_with_one_that_does(batch, micro, steps, ranks):
    values: dict[str, Any] = dict(zip(BATCHES, (batch, micro, steps), strict=True))
    if batch == micro * steps * ranks:
        deepspeed_tables(values, {}, ranks)
        return
    with pytest.raises(ValueError, match=f"try train_batch_size={micro * steps * ranks}$"):
        deepspeed_tables(values, {}, ranks)


def test_auto_is_the_value_of_the_other_sources():
    auto: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_clipping": "auto",
    }
    auto |= {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
    auto["optimizer"] = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "betas": [0.8, 0.9]}}
    params = {"warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}
    auto["scheduler"] = {"type": "WarmupDecayLR", "params": params}
    tables = {
        "num_steps": 30,
        "data": {"batch_size": 12},
        "optimizer": {"lr": 5e-4, "weight_decay": 0.3, "num_warmup": 9, "max_norm": 2.0},
        "parallel": {"bucket_bytes": 1000},
        "precision": {"products": "bfloat16"},
    }
    config = parse_config(deepspeed_tables(auto, tables, 2).record)
    assert (config.data.batch_size, config.data.micro_batch) == (12, None)
    assert (config.optimizer.lr, config.optimizer.weight_decay, config.optimizer.betas) == (5e-4, 0.3, (0.8, 0.9))
    assert (config.optimizer.num_warmup, config.optimizer.schedule_steps, config.optimizer.max_norm) == (9, 30, 2)
    assert (config.parallel.bucket_bytes, config.precision.products) == (1000, "bfloat16")
    assert config.precision.master


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"type": "Adam"}, "adamw"),
        ({"type": "Adam", "params": {"adam_w_mode": False}}, "adam"),
        ({"type": "AdamW", "params": {"adam_w_mode": False}}, "adamw"),
        ({"type": "Lion"}, "lion"),
        ({"type": "SGD", "params": {"momentum": 0.9}}, "sgd"),
    ],
)
def test_deepspeeds_adam_decouples_its_decay_unless_told_otherwise(params, name):
    assert config_of({"optimizer": params}).optimizer.name == name


@given(num_warmup=st.integers(2, 50), steps=st.integers(60, 100), shape=st.sampled_from(["log", "linear"]))
def test_the_warmup_has_the_rates_of_deepspeeds_scheduler(num_warmup, steps, shape):
    """WarmupDecayLR, as its documentation defines it: one iteration behind the step, linear to zero at the end."""
    rates = [deepspeed_warmup(step, num_warmup, 0.1, shape, steps) for step in range(steps + 2)]
    assert rates[0] == rates[1] == pytest.approx(0.1)
    assert rates[num_warmup + 1] == pytest.approx(1.0) == max(rates)
    assert rates[: num_warmup + 2] == sorted(rates[: num_warmup + 2])
    assert rates[steps + 1] == pytest.approx(0.1)  # its least rate is the first one
    middle = num_warmup // 2
    share = math.log(middle + 1) / math.log(num_warmup) if shape == "log" else middle / num_warmup
    assert rates[middle + 1] == pytest.approx(0.1 + 0.9 * share)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, "the optimizer state stays on the device"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, "stays on the device"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, "the parameters stay on the device"),
        ({"zero_optimization": {"stage": 3, "cpu_offload_param": True}}, "the parameters stay on the device"),
        ({"zero_optimization": {"stage": 2, "overlap_comm": False}}, "overlap_comm false"),
        ({"zero_optimization": {"contiguous_gradients": False}}, "zero_optimization.contiguous_gradients False"),
        ({"bf16": {"enabled": True}}, "stage 0: with 16-bit parameters"),
        ({"tensorboard": {"enabled": True}}, "tensorboard: not started"),
        ({"communication_data_type": "fp32"}, "communication_data_type 'fp32'"),
    ],
)
def test_a_field_that_changes_no_value_is_named(values, text):
    sentences = deepspeed_tables({"train_batch_size": 8, **values}, {}).sentences("Not applied")
    assert any(text in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "bf16 and fp16 cannot both be enabled"),
        ({"fp16": {"enabled": True, "consecutive_hysteresis": True}}, "fp16.consecutive_hysteresis must be False"),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "zero_quantized_weights must be False"),
        ({"optimizer": {"type": "OneBitAdam"}}, "unknown optimizer.type 'OneBitAdam'"),
        ({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}}, "use gradient_clipping"),
        ({"scheduler": {"type": "OneCycle"}}, "unknown scheduler.type 'OneCycle'"),
        ({"scheduler": {"type": "WarmupDecayLR"}}, "must have the field total_num_steps"),
        ({"curriculum_learning": {"enabled": True}}, "curriculum_learning of ds_config.json trains differently"),
        ({"gradient_clipping": -1}, "gradient_clipping must be a number, 0 or more: got -1"),
        ({"zero_optimization": {"stage": 4}}, "parallel.zero_stage must be a whole number, 0 to 3: got 4"),
    ],
)
def test_a_choice_that_would_train_differently_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        config_of(values)


def test_a_name_that_stands_twice_is_refused_as_by_deepspeed(tmp_path: Path):
    """`dict_raise_error_on_duplicate_keys` of deepspeed/runtime/config_utils.py."""
    path = tmp_path / "ds_config.json"
    path.write_text('{"train_batch_size": 8, "fp16": {"enabled": true, "enabled": false}}')
    with pytest.raises(ValueError, match="must stand once in an object: got 'enabled' twice; remove one"):
        read_deepspeed_training(path)


def test_unknown_fields_are_named_with_their_place():
    values: dict[str, Any] = {"train_batch_size": 8, "gradient_cliping": 1, "fp16": {"enabled": True, "window": 3}}
    values["optimizer"] = {"type": "AdamW", "params": {"lrr": 1}}
    found = deepspeed_tables(values, {})
    assert set(found.unknown) == {"gradient_cliping", "fp16.window", "optimizer.params.lrr"}


@given(
    devices=st.tuples(*[st.sampled_from(["none", "cpu", "nvme"])] * 2), size=st.sampled_from(["auto", 1e6, 500_000_000])
)
def test_placement_on_the_host_is_named_and_changes_nothing(devices: tuple[str, str], size: Any):
    """Stage 3 as Hugging Face's documentation has it, with "auto" and nested fields."""
    stage: dict[str, Any] = {"stage": 3, "overlap_comm": True, "sub_group_size": 1e9, "reduce_bucket_size": size}
    stage |= {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
    parts = {"offload_param": devices[0], "offload_optimizer": devices[1]}
    nested = {name: {"device": device, "pin_memory": True} for name, device in parts.items()}
    found = deepspeed_tables({"train_batch_size": 8, "zero_optimization": {**stage, **nested}}, {})
    assert found.record == deepspeed_tables({"train_batch_size": 8, "zero_optimization": stage}, {}).record
    told = " ".join(found.sentences("Without effect"))
    assert [name for name in parts if f"{name}: the" in told] == [name for name in parts if parts[name] != "none"]
