"""Where no software is named, what was usual is taken, and every answer says which."""

import json

import pytest

from lablib.cli import plan as cli_plan
from lablib.hardware import DEVICES
from lablib.plan import Parallel, predict, predict_many, search
from lablib.plan.default_stack import default_stack
from lablib.plan.stack import STACKS

A100, V100, H100 = (DEVICES[name] for name in ("A100-80GB-SXM", "V100-32GB-SXM2", "H100-80GB-SXM"))


@pytest.mark.parametrize(
    ("device", "year", "is_megatron", "name"),
    [
        (A100, 2019, True, "megatron-2021"),
        (A100, 2021, False, "megatron-2021"),
        (A100, 2022, False, "megatron-2022"),
        (A100, 2023, True, "megatron-2023"),
        (A100, 2024, True, "megatron-core"),
        (A100, 2023, False, "fsdp"),
        (A100, 2024, False, "torch-compile-2024"),
        (A100, 2026, False, "torch-compile"),
        (A100, None, True, "megatron-core"),
        (H100, None, False, "torch-compile"),
        (DEVICES["TPU-v5e"], None, True, "xla"),
        (V100, None, True, "megatron-2022"),
        (V100, 2025, False, "megatron-2022"),
    ],
)
def test_a_year_has_its_software(device, year, is_megatron, name):
    found = default_stack(device, year, is_megatron)
    assert found.name == name and "none was named" in found.why
    assert (str(year) if year else "today") in found.why


@pytest.mark.parametrize("device", list(DEVICES.values()), ids=list(DEVICES))
def test_todays_software_has_flash_attention_where_the_device_can(device):
    for is_megatron in (True, False):
        assert (STACKS[default_stack(device, None, is_megatron).name].attention == "flash") == (device != V100)


def test_every_answer_says_which_software_was_taken():
    usual, named = predict("llama-3-8b", "dgx-a100"), predict("llama-3-8b", "dgx-a100", stack="megatron-core")
    assert usual.step_time_s == named.step_time_s
    assert str(usual.software) == "megatron-core (usual today: none was named)"
    assert str(named.software) == "megatron-core (as named)"
    for found in (usual, named):
        assert f"Software: {found.software}." in found.sentence() and str(found.software) in found._repr_html_()
    (many,) = predict_many("llama-3-8b", "dgx-v100", precision="float16")
    assert many.software.name == "megatron-2022" and "no flash attention" in many.software.why


def test_a_search_and_the_command_say_it_too():
    for stack, words in ((None, "usual today"), ("torch-compile", "torch-compile (as named)")):
        found = search("gpt2", "dgx-a100", 8, nodes=1, recompute="none", schedule="1f1b", tensor=1, stack=stack)
        assert words in found.sentence() and words in cli_plan.text(found, 1)
        assert words in found.table(1)["software"][0] and words in found._repr_html_()
        said = json.loads(json.dumps(cli_plan.to_json(found, 1)))
        assert words in said["best"][0]["software"]

    too_large = search("gpt3-175b", "dgx-a100", 8, nodes=1, tensor=8)
    assert not len(too_large.order) and "Software: megatron-core (usual today" in cli_plan.text(too_large, 1)


def test_papers_are_predicted_with_their_own_software():
    # What Megatron took in 2021 (arXiv 2104.04473, table 1, 175B on 1,024 GPUs: 140 TFLOP/s) is not what it takes now.
    question = ("gpt3-175b", "dgx-a100", Parallel(data=16, tensor=8, pipeline=8), 1536)
    old, new = (predict(*question, recompute="full", stack=name) for name in ("megatron-2021", None))
    assert new.step_time_s < old.step_time_s and old.software.why == "as named"
