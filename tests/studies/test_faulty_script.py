"""The script with eight faults: each repair mends its own measurement, and no other's."""

import pytest

from lablib.studies.faulty_script import SCRIPT, repaired, symptoms

REPAIRS = {
    11: 'RECOMPUTE = ["Block"]',
    25: "config = {**DEFAULTS, **given}",
    26: 'rank, num_ranks = int(env["RANK"]), int(env["WORLD_SIZE"])',
    42: "loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), labels, ignore_index=PAD)",
    43: '(2.0**16 * loss / config["micro_batches"]).backward()',
    44: "tokens += batch_BT.numel() * num_ranks",
    47: 'nn.utils.clip_grad_norm_(model.parameters(), config["clip"])\noptimizer.step()',
}
MENDED = {
    11: ["peak memory of activations"],
    25: ["learning rate"],
    26: ["ranks that write the log"],
    42: ["labels of the loss that are padding"],
    43: ["gradients of activations below 2^-14, in FP16"],
    44: ["tokens in the last line of the log"],
    47: [],  # the configuration is not applied: another bound
}


def test_the_script_has_eight_faults():
    assert [symptom.is_right for symptom in symptoms({})] == [False] * 8


@pytest.mark.parametrize("number", REPAIRS)
def test_a_repair_mends_its_own_measurement(number: int):
    found = symptoms({number: REPAIRS[number]})
    assert [symptom.name for symptom in found if symptom.is_right] == MENDED[number]


def test_clipping_is_measured_against_the_configured_bound():
    found = {symptom.name: symptom for symptom in symptoms({25: REPAIRS[25], 47: REPAIRS[47]})}
    assert found["largest gradient norm at an update"].is_right


def test_a_repair_of_several_lines_has_the_indentation_of_the_old_line():
    lines = repaired({47: "\n        for _ in ():\n            pass\n        optimizer.step()\n"}).splitlines()
    assert lines[46:49] == ["        for _ in ():", "            pass", "        optimizer.step()"]
    assert len(lines) == len(SCRIPT.splitlines()) + 2


@pytest.mark.parametrize("repairs", [{0: "pass"}, {99: "pass"}, {True: "pass"}, {3: 5}])
def test_a_repair_that_is_none_is_refused(repairs: dict):
    with pytest.raises(ValueError, match=r"got (0|99|{True|{3: 5})"):
        symptoms(repairs)
