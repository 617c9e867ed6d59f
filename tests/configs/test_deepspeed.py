"""The reader of DeepSpeed's configuration: each field means a setting of the plan, an omission, or a refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.configs.deepspeed import parse_deepspeed
from lablib.plan import search
from lablib.plan.optimizers import OPTIMIZERS


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({}, {"precision": "float32", "zero_stage": [0], "offload": ()}),
        ({"bf16": {"enabled": True}}, {"precision": "bfloat16"}),
        ({"bfloat16": {"enabled": True}}, {"precision": "bfloat16"}),
        ({"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}}, {"precision": "float16"}),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": True}}, {"precision": "bfloat16"}),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}, {"optimizer": "adamw"}),
        ({"optimizer": {"type": "Lamb"}}, {"optimizer": "lamb"}),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, {"zero_stage": [2], "offload": ("optimizer",)}),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}, {"offload": ("optimizer",)}),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none"}}}, {"offload": ()}),
        (
            {"zero_optimization": {"stage": 3, "zero_quantized_weights": True, "zero_hpz_partition_size": 8}},
            {"zero_plus_plus": ("qwZ", "hpZ")},
        ),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, {"offload": ("parameters",)}),
        ({"activation_checkpointing": {"cpu_checkpointing": True}}, {"offload": ("activations",)}),
        ({"train_batch_size": 96, "train_micro_batch_size_per_gpu": "auto"}, {"batch": 96}),
    ],
)
def test_a_field_is_a_setting(config, settings):
    record = parse_deepspeed(config).record
    assert {name: record[name] for name in settings} == settings


@given(micro=st.integers(1, 64), steps=st.integers(1, 64), ranks=st.integers(1, 512))
def test_three_batches_give_the_data_ranks(micro, steps, ranks):
    config = {
        "train_batch_size": micro * steps * ranks,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
    }
    assert parse_deepspeed(config).record["data"] == [ranks]
    if micro * steps > 1:
        config["train_batch_size"] += 1
        with pytest.raises(ValueError, match="train_batch_size must be a multiple"):
            parse_deepspeed(config)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"zero_optimization": {"stage": 1, "overlap_comm": False}}, "overlap_comm false"),
        ({"communication_data_type": "fp32", "zero_optimization": {"overlap_comm": True}}, "communication_data_type"),
        ({"activation_checkpointing": {"partition_activations": True}}, "partition_activations"),
        ({"pipeline": {"stages": 4}}, "give --pipeline"),
    ],
)
def test_a_choice_that_is_not_priced_is_named(config, text):
    assert any(text in omission.text for omission in parse_deepspeed(config).omissions)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "bf16 and fp16 cannot both be enabled"),
        ({"bf16": True}, "bf16 of ds_config.json must be an object"),
        ({"bf16": {"enabled": "yes"}}, "enabled of bf16 of ds_config.json must be true or false: got 'yes'"),
        ({"optimizer": {"type": "OneBitAdam"}}, "unknown optimizer.type 'OneBitAdam'"),
        ({"zero_optimization": {"stage": -1}}, "stage of zero_optimization of ds_config.json must be a whole number"),
        (
            {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
            "offload_param needs stage 3.*stage 2",
        ),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "must be cpu or none: got 'nvme'"),
        ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "must be cpu or none: got 'nvme'"),
        ({"train_batch_size": 2.5}, "train_batch_size of ds_config.json must be a whole number of at least 0: got 2.5"),
    ],
)
def test_an_impossible_or_unpriced_choice_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        parse_deepspeed(config)


def test_fields_that_the_reader_does_not_know_are_named_with_their_place():
    reading = parse_deepspeed({"zero_optimisation": {}, "zero_optimization": {"stge": 1}, "gradient_clipping": 1.0})
    assert reading.unknown == ("zero_optimisation", "zero_optimization.stge")


@given(
    stage=st.integers(0, 3),
    half=st.sampled_from(["bf16", "fp16"]),
    optimizer=st.sampled_from(["Adam", "AdamW", "FusedAdam", "Lamb", "Lion", "SGD"]),
    is_offloaded=st.booleans(),
)
def test_the_settings_are_arguments_of_search(stage, half, optimizer, is_offloaded):
    zero = {"stage": stage, "offload_optimizer": {"device": "cpu" if is_offloaded else "none"}}
    config = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
    config |= {half: {"enabled": True}, "optimizer": {"type": optimizer}, "zero_optimization": zero}
    settings = parse_deepspeed(config).record
    assert settings["optimizer"] in OPTIMIZERS
    found = search("gpt2", "dgx-a100", nodes=1, recompute="none", schedule="1f1b", **settings)
    assert len(found.order) == 1
    best = found.best
    assert (best.parallel.data, best.parallel.zero_stage, best.micro_batch, best.batch) == (8, stage, 2, 16)
