"""Rows are read strictly: one error with line, field, value and what would be right."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.validation.fields import FIELDS, billions
from lablib.validation.rows import parse_rows, read_rows


def test_the_published_rows_are_all_read_and_nothing_in_them_is_left_unused(published):
    assert len(published) == 296
    assert {row.family for row in published} == {
        *("vtrain", "mpt", "megatron", "korthikanti22", "titan", "mbridge", "bloom", "simumax")
    }
    assert not any(row.unused for row in published)
    assert all(row.source["url"].startswith("https://") for row in published)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.layers": None}, "field model.layers: missing; a whole number from 1 to 10,000"),
        ({"model.hidden": None}, "field model.hidden: missing; a whole number from 1 to 1e+07"),
        ({"model.seq": None}, "field model.seq: missing"),
        ({"hardware.gpus": None}, "field hardware.gpus: missing"),
        ({"hardware.gpu": None}, "field hardware.gpu: missing; text"),
        ({"batch.global": None}, "field batch.global: missing"),
        ({"measured": {}}, "field measured: missing; one of iteration_s, tokens_per_s"),
        ({"parallel.tp": None}, "field parallel.tp: missing; the others give 2 ranks, hardware.gpus is 8"),
        ({"id": None}, "field id: missing"),
        ({"model.hiden": 4096, "model.hidden": None}, "field model.hiden: unknown; did you mean model.hidden?"),
        ({"batch.grad_acum": 8}, "field batch.grad_acum: unknown; did you mean batch.grad_accum?"),
        ({"measured.iteration_ms": 4000, "measured.iteration_s": None}, "did you mean measured.iteration_s?"),
        ({"hardwares": {}, "hardware": None}, "field hardwares: unknown; did you mean hardware?"),
        ({"recompue": "full", "recompute": None}, "field recompue: unknown; did you mean recompute?"),
        ({"model.layers": -4}, "field model.layers: must be a whole number from 1 to 10,000: got -4"),
        ({"model.layers": 2.5}, "field model.layers: must be a whole number from 1 to 10,000: got 2.5"),
        ({"model.layers": True}, "got true"),
        ({"model.layers": "32"}, 'got "32"'),
        ({"hardware.gpus": 0}, "field hardware.gpus: must be a whole number from 1 to 1e+07: got 0"),
        ({"measured.iteration_s": -1.0}, "field measured.iteration_s: must be a number from 1e-05 to 100,000 s"),
        ({"measured.iteration_s": 4e6}, "got 4000000.0"),
        ({"measured.iteration_s": float("nan")}, "got NaN"),
        ({"measured.mfu": 43.0}, "(a share of the peak: 0.43, not 43): got 43.0"),
        ({"measured.hw_tflops_per_gpu": 1.4e14}, "must be a number from 0.01 to 20,000 TFLOP/s: got 140000000000000.0"),
        ({"measured.memory_gib_per_gpu": 66000}, "field measured.memory_gib_per_gpu: must be a number from 0.05 to 1"),
        ({"parallel.zero_stage": 4}, "field parallel.zero_stage: must be a whole number from 0 to 3: got 4"),
        ({"model.params_b": "many"}, 'must be billions of parameters, 7.1 or "7.1b": got "many"'),
        ({"batch.gbs": 7}, "field batch.global: stated under two names, one is gbs; leave one"),
        ({"model": [1]}, "field model: must be an object, {...}: got [1]"),
    ],
)
def test_a_row_that_cannot_be_meant_is_refused_with_its_line_and_field(line, changes, message):
    lines = [line(), "", line(changes)]
    with pytest.raises(ValueError, match="^rows, line 3: ") as caught:
        parse_rows(lines)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_field_that_is_stated_twice_is_refused(line):
    twice = line().replace('"layers":', '"layers": 3, "layers":')
    with pytest.raises(ValueError, match="^rows, line 1: field layers: stated 2 times; leave one"):
        parse_rows([twice])


def test_a_line_that_is_no_json_is_refused_with_the_place(line):
    with pytest.raises(ValueError, match=re.escape("rows, line 2: not JSON: ")):
        parse_rows([line(), line()[:-1]])
    with pytest.raises(ValueError, match="rows, line 1: a row must be a JSON object"):
        parse_rows(["[1, 2]"])


def test_a_file_of_any_editor_is_read(tmp_path, line):
    # A byte order mark, lines that end as on Windows, a separator of lines inside a text.
    text = line({"notes": "one\u2028two"})
    raw = json.dumps(json.loads(text), ensure_ascii=False)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + f"{raw}\r\n\r\n{raw}\r\n".encode())
    assert [row.line for row in read_rows(path)] == [1, 3]


def test_a_file_without_rows_or_that_is_not_there_says_so(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n", "utf-8")
    with pytest.raises(ValueError, match=r"^empty.jsonl has no rows"):
        read_rows(empty)
    with pytest.raises(ValueError, match=r"nothing.jsonl cannot be read: No such file"):
        read_rows(tmp_path / "nothing.jsonl")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not text in UTF-8"):
        read_rows(tmp_path / "bytes.jsonl")


def test_a_field_of_quite_another_name_is_kept_aside_and_named(row):
    assert row({"model.router_jitter": 0.1, "weather": "fine"}).unused == ("weather", "model.router_jitter")


def test_other_names_of_experts_are_understood(row):
    sizes = row({"model.num_experts": 128, "model.top_k": 8, "model.moe_ffn": 768, "model.n_shared_experts": 1}).model
    assert [sizes[name] for name in ("experts", "experts_per_token", "expert_ffn", "shared_experts")] == [
        128,
        8,
        768,
        1,
    ]


def test_null_is_the_same_as_not_stated(line):
    record = json.loads(line())
    record["model"]["kv_heads"] = None
    assert "kv_heads" not in parse_rows([json.dumps(record)])[0].model


def test_a_row_that_is_no_measurement_is_not_read_on():
    assert not parse_rows(['{"id": "theory-1", "scorable": false, "model": "?"}'])[0].is_scorable


@given(st.data())
def test_every_name_with_two_letters_turned_is_answered_with_itself(data):
    known = [(s, k) for s, names in FIELDS.items() if s for k in names if len(k) >= 6]
    section, key = data.draw(st.sampled_from(known))
    at = data.draw(st.integers(0, len(key) - 2))
    slip = key[:at] + key[at + 1] + key[at] + key[at + 2 :]
    if slip in FIELDS[section]:
        return
    with pytest.raises(ValueError, match=rf"field {section}.{slip}: unknown; did you mean {section}."):
        parse_rows([json.dumps({"id": "a", section: {slip: 1}})])


def test_a_number_of_parameters_is_read_with_its_letter():
    assert [billions(text) for text in ("22b", "1t", "181B", "350m", 7.1)] == [22, 1000, 181, 0.35, 7.1]
