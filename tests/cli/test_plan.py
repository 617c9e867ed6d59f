"""`lab plan`: what it prints, what it refuses, and its exit codes."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.cli import plan as cli_plan
from lablib.cli.main import main
from lablib.configs.writing import TOOLS
from lablib.pipeline.closed_form import WITH_CLOSED_FORM
from lablib.plan import search
from lablib.plan.arguments import PRECISIONS
from lablib.plan.optimizers import OPTIMIZERS
from lablib.plan.recompute import KINDS

ASKED = ["plan", "--model", "gpt3-13b", "--cluster", "dgx-a100", "--nodes", "2", "--batch", "64"]
FEW = ["--schedule", "1f1b,zb-v", "--recompute", "none, full", "--context", "1"]


def test_the_best_plans_are_a_table_with_the_reasons_of_the_others(monkeypatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(cli_plan, "_BAR_AFTER_S", 1e9)  # no bar on a busy machine either
    assert main([*ASKED, *FEW, "--top", "3"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    best = search("gpt3-13b", "dgx-a100", 64, nodes=2, schedule=["1f1b", "zb-v"], recompute=["none", "full"], context=1)
    assert lines[0] == "gpt3-13b on 16 GPUs of dgx-a100, a step of 64 sequences of 2,048 tokens:"
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "3"]
    assert str(best.best.parallel) in lines[3] and f"{best.best.mfu:.1%}" in lines[3]
    assert f"{len(best.plans):,} plans tried" in said.out
    for kind, count in best.rejected.counts.items():
        assert any(line.startswith(kind) and f"{count:,}" in line for line in lines), kind
    assert said.err == ""


def test_json_says_the_same_in_seconds_and_bytes(capsys: pytest.CaptureFixture):
    assert main([*ASKED, *FEW, "--json", "--top", "2", "--tensor", "2-4", "--micro-batch", "1,2"]) == 0
    said = json.loads(capsys.readouterr().out)
    given = {"schedule": ["1f1b", "zb-v"], "recompute": ["none", "full"], "tensor": [2, 3, 4], "micro_batch": [1, 2]}
    found = search("gpt3-13b", "dgx-a100", 64, nodes=2, context=1, **given)
    assert len(said["best"]) == 2 and said["tried"] == len(found.plans) and said["fit"] == len(found.order)
    assert said["best"][0]["step_time_s"] == found.best.step_time_s
    assert {kind: each["plans"] for kind, each in said["rejected"].items()} == found.rejected.counts
    assert said["nearest"] is None


@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_json_repeats_its_inputs_so_that_a_search_with_them_is_the_same(data):
    flags = {
        "--seq-len": st.sampled_from(["1024", "2048"]),
        "--precision": st.sampled_from(["bfloat16", "float16"]),
        "--stack": st.sampled_from(["megatron-core", "torch-compile"]),
        "--optimizer": st.sampled_from(sorted(OPTIMIZERS)),
        "--offload": st.sampled_from(["optimizer", "activations", "optimizer,activations"]),
        "--compression": st.sampled_from(["none", "int8", "powersgd"]),
        "--zero-stage": st.sampled_from(["0", "0,1"]),
        "--micro-batch": st.sampled_from(["1", "1,2", "2-4"]),
        "--schedule": st.sampled_from(["1f1b", "1f1b,zb-h1"]),
    }
    words = [*ASKED, "--tensor", "4,8", "--pipeline", "1,2", "--recompute", "full", "--json", "--top", "2"]
    for flag, values in flags.items():
        if data.draw(st.booleans()):
            words += [flag, data.draw(values)]
    words += ["--lora"] * ("--compression" not in words and data.draw(st.booleans()))
    with redirect_stdout(StringIO()) as said:
        main(words)
    answer = json.loads(said.getvalue())
    found = search(**answer["inputs"])
    assert json.loads(json.dumps(cli_plan.to_json(found, 2))) == {
        k: v for k, v in answer.items() if k not in ("inputs", "remarks", "training")
    }
    assert answer["inputs"]["seq_len"] and answer["inputs"]["model"] == "gpt3-13b"
    for flag in flags:
        if flag in words:
            given = answer["inputs"][flag[2:].replace("-", "_")]
            told = words[words.index(flag) + 1]
            assert str(given) == told or set(map(str, given)) <= {*told.split(","), "2", "3", "4"}


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (["--offload", "optimizer"], {"offload": ("optimizer",)}),
        (["--offload", "optimizer, activations"], {"offload": ("optimizer", "activations")}),
        (["--lora"], {"trainable": "lora"}),
        (["--compression", "int8"], {"compression": "int8"}),
        (["--optimizer", "muon"], {"optimizer": "muon"}),
    ],
)
def test_an_option_is_the_argument_of_search(words, change, capsys: pytest.CaptureFixture):
    assert main([*ASKED, *FEW, *words, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"][0]
    few = {"schedule": ["1f1b", "zb-v"], "recompute": ["none", "full"], "context": 1}
    changed, plain = (search("gpt3-13b", "dgx-a100", 64, nodes=2, **few, **more).best for more in (change, {}))
    assert best["step_time_s"] == changed.step_time_s != plain.step_time_s


def test_a_plan_above_95_percent_of_the_memory_is_tight(capsys: pytest.CaptureFixture):
    found = search("gpt3-13b", "dgx-a100", 64, nodes=2, recompute="none")
    assert main([*ASKED, "--recompute", "none", "--top", "100000"]) == 0
    lines = capsys.readouterr().out.splitlines()[3 : 3 + len(found.top(100000))]
    shares = [each.peak_memory_bytes / each.memory_limit_bytes for each in found.top(100000)]
    assert [", tight" in line for line in lines] == [share > 0.95 for share in shares]
    assert any(share > 0.95 for share in shares) and not all(share > 0.95 for share in shares)
    tight = next(each for each in found.top(100000) if each.is_tight)
    assert "fits, tight." in tight.sentence()


def test_where_nothing_fits_the_nearest_miss_is_said_and_the_exit_code_is_1(capsys: pytest.CaptureFixture):
    words = ["plan", "--model", "gpt3-175b", "--cluster", "dgx-a100", "--gpus", "8", "--batch", "8", "--tensor", "8"]
    assert main(words) == 1
    assert "none fits; the nearest (tensor 8) needs" in capsys.readouterr().out
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["nearest"]["tensor"] == 8


def test_long_searches_show_a_bar_that_is_gone_at_the_end(monkeypatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(cli_plan, "_BAR_AFTER_S", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main([*ASKED, *FEW]) == 0
    said = capsys.readouterr()
    assert "plans/s" in said.err and "plans/s" not in said.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--tensor", "some"], "--tensor is a number, some (1,2,4) or a range (4-16): got 'some'"),
        (["--micro-batch", "4-1"], "--micro-batch is a range without a number: got '4-1'; try the smaller first"),
        (
            ["--tensor", "1-99999999999"],
            "--tensor is at most 100,000 numbers: got '1-99999999999'; try a shorter range",
        ),
        (["--tensor", "3", "--pipeline", "1"], "try divisors of 16"),
        (["--schedule", "1f1c"], "did you mean '1f1b'"),
        (["--recompute", "much"], "recompute is"),
        (["--recompute", "ful"], "got 'ful'; try \"full\""),
        (["--precision", "bf16"], "precision must be one of float32"),
        (["--gpus", "8"], "give nodes or gpus, one of the two"),
        (["--write", "megatron", "--json"], "--write and --json are different outputs: give one of them"),
        (["--top", "0"], "--top must be 1 or more: got 0"),
        (["--optimizer", "adamv"], "did you mean"),
        (["--offload", "weights"], "one of optimizer, activations, parameters: got 'weights'"),
        (["--compression", "int9"], "unknown gradient compression 'int9'"),
        (["--lora", "--compression", "int8"], "compression needs gradients"),
        (["--imbalance", "1.5"], "--imbalance needs a mixture of experts"),
        (["--batch", "many"], "--batch is a whole number, or a number with k or M: got 'many'; try 64 or 4M"),
        (["--batch", "0"], "batch must be a whole number, 1 or more: got 0"),
        (["--batch", "1.5"], "--batch is a whole number, or a number with k or M: got '1.5'"),
        (["--batch", "4G"], "--batch is a whole number, or a number with k or M: got '4G'"),
        (["--seq-len", "long"], "--seq-len is a whole number, or a number with k or M: got 'long'"),
        (["--tokens", "300X"], "--tokens is a whole number, or a number with k or M or B or T: got '300X'"),
        (["--tokens=-5"], "--tokens is a whole number, or a number with k or M or B or T: got '-5'"),
        (["--tokens", "1B", "--price=-1"], "--price must be 0 or more, and finite: got -1.0"),
        (["--model", "absent/config.json"], "absent/config.json cannot be read: No such file"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_exit_code_2(words, sentence, capsys: pytest.CaptureFixture):
    assert main([*ASKED, *words]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("lab: ") and sentence in said.err and said.err.count("\n") == 1
    assert said.out == ""


def test_a_model_nobody_knows_is_answered_with_the_nearest(capsys: pytest.CaptureFixture):
    assert main(["plan", "--model", "gpt3-175c", "--cluster", "dgx-a100", "--nodes", "1", "--batch", "8"]) == 2
    assert "did you mean 'gpt3-175b'" in capsys.readouterr().err


def test_experts_may_be_whole_beside_split_attention(capsys: pytest.CaptureFixture):
    asked = ["plan", "--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--nodes", "4", "--batch", "64"]
    few = "--tensor 4 --expert 8 --expert-tensor 1 --schedule 1f1b --seq-len 4096 --json".split()
    assert main([*asked, *few]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert {(each["expert"], each["expert_tensor"]) for each in best} == {(8, 1)}


def test_the_help_has_every_name_that_may_be_given(capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    whole_lines = re.sub(r"-\n\s+", "-", capsys.readouterr().out)
    said = re.split(r"[\s,;:]+", whole_lines)
    assert {*PRECISIONS, *OPTIMIZERS, *WITH_CLOSED_FORM, *KINDS} <= set(said)


SMALL = ["plan", "--cluster", "dgx-a100", "--nodes", "1", "--tensor", "1", "--pipeline", "1", "--top", "1", "--json"]
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 8192,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


def _answer(capsys: pytest.CaptureFixture, *words: str) -> dict:
    main([*SMALL, *words])
    return json.loads(capsys.readouterr().out)


def test_a_config_of_hugging_face_is_a_model(tmp_path, capsys: pytest.CaptureFixture):
    path = tmp_path / "mine" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA | {"attention_bias": True, "num_memory_tokens": 3}))
    mine = _answer(capsys, "--model", str(path), "--batch", "64")
    published = _answer(capsys, "--model", "llama-3-8b", "--batch", "64")
    assert mine["best"] == published["best"]
    assert mine["inputs"]["model"] == "mine"
    assert mine["remarks"] == [
        "Read: 32 layers of width 4,096; 32 heads of 128 (8 of keys and values); an MLP of three matrices, "
        "14,336 wide; its own head over 128,256 tokens; 8,030,261,248 parameters.",
        f"Not priced: biases of the attention ({32 * (4096 + 2 * 1024 + 4096):,} parameters).",
        "Fields not understood: num_memory_tokens.",
    ]


@pytest.mark.parametrize(
    ("words", "batch", "seq_len"),
    [
        (["--batch", "64"], 64, 8192),
        (["--batch", "4M"], 512, 8192),
        (["--batch", "4m", "--seq-len", "4k"], 1024, 4096),
        (["--batch", "1k", "--seq-len", "2048"], 1, 2048),
    ],
)
def test_a_batch_with_a_unit_counts_tokens(words, batch, seq_len, capsys: pytest.CaptureFixture):
    inputs = _answer(capsys, "--model", "llama-3-8b", *words)["inputs"]
    assert (inputs["batch"], inputs["seq_len"]) == (batch, seq_len)


def test_a_whole_training_in_days_hours_energy_and_money(capsys: pytest.CaptureFixture):
    answer = _answer(capsys, "--model", "llama-3-8b", "--batch", "64", "--tokens", "300B", "--price", "2.5")
    seconds = 300e9 / answer["best"][0]["tokens_per_s"]
    training = answer["training"]
    assert training["days"] == pytest.approx(seconds / 86400)
    assert training["gpu_hours"] == pytest.approx(8 * seconds / 3600)
    assert training["energy_j"] == pytest.approx(8 * 400 * seconds)  # an A100 has 400 W
    assert training["price"] == pytest.approx(2.5 * 8 * seconds / 3600)
    main([*SMALL[:-1], "--model", "llama-3-8b", "--batch", "64", "--tokens", "300B"])
    assert f"300B tokens by the first plan: {training['days']:,.3g} days" in capsys.readouterr().out


def test_a_configuration_of_deepspeed_fills_in_what_no_option_says(tmp_path, capsys: pytest.CaptureFixture):
    path = tmp_path / "ds_config.json"
    zero = {"stage": 2, "overlap_comm": True, "stages": 3}
    config = {"train_batch_size": 64, "fp16": {"enabled": True}, "zero_optimization": zero}
    path.write_text(json.dumps(config | {"optimizer": {"type": "Lion"}, "train_micro_batch_size_per_gpu": 4}))
    words = ["--model", "llama-3-8b", "--deepspeed", str(path), "--seq-len", "2k"]
    inputs = _answer(capsys, *words)["inputs"]
    given = {"batch": 64, "micro_batch": [4], "zero_stage": [2], "precision": "float16", "optimizer": "lion"}
    assert {name: inputs[name] for name in given} == given
    answer = _answer(capsys, *words, "--optimizer", "adamw", "--batch", "32", "--zero-stage", "1,2")
    assert answer["remarks"] == ["Fields not understood: zero_optimization.stages."]
    changed = {"batch": 32, "optimizer": "adamw", "zero_stage": [1, 2]}
    assert {name: answer["inputs"][name] for name in given} == given | changed


def test_the_arguments_of_megatron_are_a_model_and_a_plan(capsys: pytest.CaptureFixture):
    arguments = (
        "--num-layers 40 --hidden-size 5120 --num-attention-heads 40 --seq-length 2048 --vocab-size 50257 "
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 64 "
        "--bf16 --sequence-parallel --recompute-activations --lr 1e-4"
    )
    words = ["plan", "--cluster", "dgx-a100", "--nodes", "2", "--json", "--megatron", arguments]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["tried"] == 1 and len(answer["remarks"]) == 1
    assert answer["remarks"][0].startswith("Read: 40 layers of width 5,120; 40 heads of 128; an MLP of two matrices")
    best = answer["best"][0]
    assert (best["data"], best["tensor"], best["pipeline"], best["recompute"]) == (4, 2, 2, "selective")
    assert main([*words, "--deepspeed", "any.json"]) == 2
    assert "--deepspeed and --megatron both choose a plan" in capsys.readouterr().err


TITAN = '[model]\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 4096\nsteps = 10\nseqlen = 1\n'


def test_a_file_of_torchtitan_is_a_model_and_a_plan_for_the_gpus(tmp_path, capsys: pytest.CaptureFixture):
    (tmp_path / "llama.toml").write_text(TITAN)
    words = ["plan", "--cluster", "dgx-h100", "--nodes", "2", "--json", "--torchtitan", str(tmp_path / "llama.toml")]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    best = answer["best"][0]
    assert answer["tried"] == 1 and (best["data"], best["zero_stage"], best["micro_batch"]) == (16, 3, 2)
    assert (answer["inputs"]["batch"], answer["inputs"]["seq_len"]) == (32, 4096)
    assert answer["remarks"][0].startswith("Read: 32 layers of width 4,096; 32 heads of 128")
    assert answer["remarks"][1:] == ["Fields not understood: training.seqlen."]
    main([*words, "--batch", "64", "--zero-stage", "3", "--data", "16"])
    assert json.loads(capsys.readouterr().out)["inputs"]["batch"] == 64
    assert main([*words[:-1], str(tmp_path / "lama.toml")]) == 2
    assert "did you mean llama.toml?" in capsys.readouterr().err


@pytest.mark.parametrize("tool", TOOLS)
def test_the_best_plan_is_written_and_read_back(tool, tmp_path, capsys: pytest.CaptureFixture):
    where = ["--cluster", "dgx-h100", "--nodes", "1"]
    few = ["--pipeline", "1", "--recompute", "none", "--zero-stage", "0,1,3", "--seq-len", "4k", "--tensor", "1"]
    few += ["--stack", "megatron-core" if tool == "megatron" else "torch-compile", "--batch", "16", "--context", "1"]
    asked = ["plan", "--model", "llama-3-8b", *where, *few]
    main([*asked, "--json", "--top", "1"])
    best = json.loads(capsys.readouterr().out)["best"]
    path = tmp_path / "config"
    assert main([*asked, "--write", tool, str(path)]) == 0
    assert f"Written: {path}." in capsys.readouterr().out
    assert main([*asked, "--write", tool]) == 0
    written = capsys.readouterr()
    assert written.out == path.read_text() and "llama-3-8b on 8 GPUs" in written.err
    model = ["--model", "llama-3-8b", *few[2:4], *few[6:8], *few[10:12]] if tool == "deepspeed" else []
    read = main(["plan", *where, *model, f"--{tool}", str(path), "--json", "--pipeline", "1", "--tensor", "1"])
    again = json.loads(capsys.readouterr().out)
    assert read == 0 and again["tried"] == 1
    same = ("data", "zero_stage", "micro_batch", "recompute", "software")
    assert {name: again["best"][0][name] for name in same} == {name: best[0][name] for name in same}
    assert again["best"][0]["step_time_s"] == pytest.approx(best[0]["step_time_s"], rel=1e-3)
    for words, text in {("deepsped",): "did you mean 'deepspeed'", (tool, "a", "b"): "a tool and one file"}.items():
        assert main([*asked, "--write", *words]) == 2
        assert text in capsys.readouterr().err


def test_a_measured_step_is_explained(tmp_path, capsys: pytest.CaptureFixture):
    few = ["--tensor", "4", "--pipeline", "1", "--recompute", "none", "--zero-stage", "3", "--micro-batch", "1"]
    asked = "plan --model llama-3-8b --cluster dgx-h100 --nodes 2 --batch 32 --context 1".split()
    assert main([*asked, *few, "--json", "--why", "4.0"]) == 0
    answer = json.loads(capsys.readouterr().out)
    step = answer["terms"][-1]
    found = search("llama-3-8b", "dgx-h100", 32, nodes=2, tensor=4, pipeline=1, context=1, recompute="none",
                   zero_stage=3, micro_batch=1)  # fmt: skip
    assert step == {
        "term": "step", "predicted_s": found.best.step_time_s, "measured_s": 4.0,
        "difference_s": found.best.step_time_s - 4.0, "difference_pct": 25 * (found.best.step_time_s - 4.0),
    }  # fmt: skip
    assert answer["changes"][0]["kind"] == "precision" and "tfloat32" in answer["sentence"]
    (tmp_path / "terms.json").write_text(json.dumps({"step": 4.0, "tensor axis": 2.0}))
    assert main([*asked, *few, "--why", str(tmp_path / "terms.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    tensor_s = f"{1e3 * found.best.parts['tensor axis']:.3g}"
    assert any(line.split()[:4] == ["tensor", "axis", tensor_s, "ms"] and "2 s" in line for line in lines)
    assert any(line.startswith("placement") for line in lines)
    assert main([*asked, *few, "--why", "many"]) == 2
    assert "a measured step is seconds (1.83), a JSON file, or a trace" in capsys.readouterr().err
    assert main([*asked, "--why", "4.0", "--tensor", "4,8"]) == 0
    assert "The best of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words", "hint"),
    [
        (ASKED, ["--modle", "gpt2"], "did you mean --model"),
        (ASKED, ["--torchtitn=x"], "did you mean --torchtitan"),
        (["run", "09"], ["--bakend", "gloo"], "did you mean --backend"),
    ],
)
def test_a_misspelt_option_has_its_nearest(command, words, hint, capsys: pytest.CaptureFixture):
    assert main([*command, *words]) == 2
    assert f"unrecognized arguments: {' '.join(words)}; {hint}" in capsys.readouterr().err


def test_a_node_that_is_not_full_is_a_remark(capsys: pytest.CaptureFixture):
    words = ["plan", "--model", "gpt2", "--cluster", "dgx-a100", "--batch", "24", "--json", "--tensor", "1"]
    main([*words, "--gpus", "12"])
    assert json.loads(capsys.readouterr().out)["remarks"] == ["12 GPUs on nodes of 8: the last node has 4; try 8."]
    for gpus in ("4", "16"):
        main([*words, "--gpus", gpus])
        assert json.loads(capsys.readouterr().out)["remarks"] == []


def test_the_names_can_be_listed_and_missing_arguments_are_named(capsys: pytest.CaptureFixture):
    assert main(["plan", "--list"]) == 0
    out = capsys.readouterr().out
    names = ("gpt3-175b", "dgx-h100", "megatron-core", "bfloat16", "adamw", "zb-v", "powersgd", "torchtitan")
    assert all(name in out for name in names)
    assert main(["plan", "--model", "gpt2"]) == 2
    assert "lab plan needs --cluster and --batch; lab plan --list has the names" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asserted", "code", "says"),
    [
        ("step_s > 0 and gpus == 16 and 0 < mfu < 1 and bubble_share >= 0", 0, "assertion holds: step_s > 0"),
        ("gpu_hours < 1e9 and price == 2 * gpu_hours", 0, "price == 2 * gpu_hours: true, price is "),
        ("energy_j < 1 or peak_bytes < 1e6", 1, "  peak_bytes < 1e6: FALSE, peak_bytes is "),
        ("step < 1", 2, "unknown name in --assert 'step': did you mean 'step_s'"),
    ],
)
def test_an_assertion_on_the_best_plan_decides_the_exit_code(asserted, code, says, capsys: pytest.CaptureFixture):
    words = [*ASKED, *FEW, "--tokens", "1B", "--price", "2", "--assert", asserted]
    assert main(words) == code
    said = capsys.readouterr()
    assert says in (said.err if code == 2 else said.out)
    if code != 2:
        assert main([*words, "--json"]) == code
        said = capsys.readouterr()
        assert json.loads(said.out)["best"] and says in said.err


def test_an_assertion_goes_with_no_other_output_and_is_not_known_without_tokens(capsys: pytest.CaptureFixture):
    assert main([*ASKED, *FEW, "--assert", "days < 9"]) == 1
    assert "  days < 9: FALSE, days is not known" in capsys.readouterr().out
    assert main([*ASKED, "--assert", "days < 9", "--write", "megatron"]) == 2
    assert "--assert is on the best plan: it goes with no --write" in capsys.readouterr().err
