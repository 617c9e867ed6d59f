"""The script with eight faults: each repair mends its own measurement, and no other's."""

from typing import Any

import pytest

from lablib.studies.faulty_script import NO_BOUND, SCRIPT, evidence, repaired, symptoms

REPAIRS = {
    11: 'RECOMPUTE = ["Block"]',
    25: "config = {**DEFAULTS, **given}",
    26: 'rank, num_ranks = int(env["RANK"]), int(env["WORLD_SIZE"])',
    42: "loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), labels, ignore_index=PAD)",
    43: '(2.0**16 * loss / config["micro_batches"]).backward()',
    44: "tokens += batch_BT.numel() * num_ranks",
    47: 'nn.utils.clip_grad_norm_(model.parameters(), config["clip"])\noptimizer.step()',
}
ALL = REPAIRS | {
    34: "from torch.utils.data import DistributedSampler\nsampler = DistributedSampler(texts, num_ranks, rank)\n"
    'loader = DataLoader(texts, batch_size=config["batch"], sampler=sampler)',
    47: f"for param in model.parameters():\n    param.grad /= 2.0**16\n{REPAIRS[47]}",
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


def test_four_faults_show_in_timeline_memory_and_losses():
    run, losses = evidence({})
    assert {span.rank for span in run.timeline.spans if span.phase == "log"} == {0, 2}
    assert not any(span.is_recompute for span in run.timeline.spans)
    assert len({tuple(own) for own in losses}) == 1  # the same texts on all ranks
    assert len(losses[0]) == 4 and all(loss < of_words for loss, of_words in losses[0])  # padding is easy to predict


def test_the_evidence_of_the_repaired_script_is_right():
    run, losses = evidence(ALL)
    assert {span.rank for span in run.timeline.spans if span.phase == "log"} == {0}
    assert any(span.is_recompute for span in run.timeline.spans)
    assert max(run.memory.curve(0)[1]["activation"]) < 0.6 * max(evidence({})[0].memory.curve(0)[1]["activation"])
    assert len({tuple(own) for own in losses}) == 4
    assert [loss for own in losses for loss, _ in own] == pytest.approx([words for own in losses for _, words in own])


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


def test_all_repairs_mend_all_measurements():
    assert _broken(ALL) == []
    assert _broken(ALL, config={"lr": 1e-3, "clip": NO_BOUND, "micro_batches": 4}, ranks=2) == []


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({39: "with torch.autocast(device.type, dtype=torch.bfloat16):"}, "gradients of activations"),
        ({47: ALL[47].replace('["clip"]', '["lr"]')}, "largest gradient norm"),
        ({18: "self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)"}, "peak memory"),
        ({38: "batch_BT = next(batches).to(device)[:1]"}, "peak memory"),
        ({42: ALL[42].replace("labels, ignore_index=PAD", "labels.clamp(min=1)")}, "labels of the loss"),
    ],
)
def test_a_workaround_is_seen(changed: dict[int, str], broken: str):
    assert any(name.startswith(broken) for name in _broken(ALL | changed))


@pytest.mark.parametrize(
    "loss",
    [
        "F.nll_loss(logits_BTV.float().flatten(0, 1).log_softmax(-1), labels, ignore_index=PAD)",
        'F.cross_entropy(logits_BTV.float().flatten(0, 1), labels, reduction="none")[labels != PAD].mean()',
    ],
)
def test_padding_is_measured_whatever_computes_the_loss(loss: str):
    assert _broken(ALL | {42: f"loss = {loss}"}) == []


def _broken(repairs: dict[int, str], **options: Any) -> list[str]:
    return [symptom.name for symptom in symptoms(repairs, **options) if not symptom.is_right]
