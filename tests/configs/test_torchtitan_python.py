"""The reader of torchtitan's Python configurations: the same plan as from TOML, and nothing of the file is run."""

import pytest

from lablib.configs.torchtitan import parse_torchtitan, read_torchtitan

# Written in the form of torchtitan/models/llama3/config_registry.py at b5bcd76c.
FILE = """
from torchtitan.trainer import Trainer

raise SystemExit("this file must never run")
LENGTH = 8192

def base() -> Trainer.Config:
    '''A docstring.'''
    spec = model_registry("8B")
    return Trainer.Config(
        hf_assets_path="./assets",
        model_spec=spec,
        optimizer=default_adamw(lr=3e-4),
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(size=decoder_vocab_size(spec))),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * LENGTH, max_context_length=LENGTH, steps=1000
        ),
        parallelism=ParallelismConfig(tensor_parallel_degree=4),
        activation_checkpoint=FullAC.Config(),
    )

def narrow():
    config = base()
    config.compile = CompileConfig(enable=True, components=["model", "loss"], enable_async_tensor_parallel=True)
    config.parallelism.data_parallel_replicate_degree = 2
    config.activation_checkpoint.preserve_rng_state = False
    config.model_spec = model_registry("8B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])])
    return config

def pipeline():
    config = base()
    config.parallelism = ParallelismConfig(pipeline_parallel_degree=4, num_pp_microbatches=8)
    config.training.num_tokens_per_train_step = 64 * LENGTH * 4
    config.activation_checkpoint = None
    return config

def older():
    return Trainer.Config(
        model_spec=model_registry("8B_flex_attn"),
        training=TrainingConfig(local_batch_size=2, seq_len=4096),
        activation_checkpoint=ActivationCheckpointConfig(mode="selective", selective_ac_option="op"),
        model_converters=ModelConvertersContainer.Config(converters=[Float8LinearConverter.Config()]),
    )

def unclear():
    config = base()
    if os.environ.get("LONG"):
        config.training.max_context_length = 2 ** 20
    config.parallelism.context_parallel_degree = int(os.environ["CONTEXT"])
    config.parallelism.expert_parallel_degree = config.nothing * 2
    config.optimizer = OptimizersInBackwardContainer.Config(lr=1)
    config.router = Router.Config()
    tweak(config)
    return config

def again():
    return again()

def nothing():
    return 3
"""
TABLES = {
    "model": {"name": "llama3", "flavor": "8B", "converters": []},
    "training": {"local_batch_size": 2, "seq_len": 8192},
    "parallelism": {"tensor_parallel_degree": 4},
    "activation_checkpoint": {"mode": "full"},
}
CASES = {
    "base": TABLES,
    "narrow": TABLES
    | {
        "model": {"name": "llama3", "flavor": "8B", "converters": ["quantize.linear.float8"]},
        "parallelism": {
            "tensor_parallel_degree": 4, "data_parallel_replicate_degree": 2, "enable_async_tensor_parallel": True,
        },
        "compile": {"enable": True, "components": ["model", "loss"]},
    },
    "pipeline": TABLES
    | {
        "training": {"local_batch_size": 16, "seq_len": 8192, "global_batch_size": 256},
        "parallelism": {"pipeline_parallel_degree": 4, "pipeline_parallel_microbatch_size": 2},
        "activation_checkpoint": {"mode": "none"},
    },
    "older": {
        "model": {"name": "llama3", "flavor": "8B_flex_attn", "converters": ["quantize.linear.float8"]},
        "training": {"local_batch_size": 2, "seq_len": 4096},
        "activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"},
    },
}  # fmt: skip


@pytest.fixture
def file(tmp_path):
    (tmp_path / "llama3").mkdir()
    path = tmp_path / "llama3" / "config_registry.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_the_plan_of_the_same_tables_in_toml(name, file):
    python, toml = read_torchtitan(f"{file}:{name}", 64), parse_torchtitan(CASES[name], 64)
    assert python.record == toml.record
    assert python.unknown == ()
    texts = {omission.text for omission in python.omissions} - {omission.text for omission in toml.omissions}
    assert texts <= {"a loss in chunks: all logits are priced at once"}


def test_expressions_that_are_not_read_are_named_with_their_lines(file):
    reading = read_torchtitan(f"{file}:unclear", 64)
    assert reading.record["context"] == [1] and reading.record["seq_len"] == 8192
    texts = " | ".join(omission.text for omission in reading.omissions)
    lines = {
        name: FILE.splitlines().index(name) + 1 for name in ('    if os.environ.get("LONG"):', "    tweak(config)")
    }
    for line in lines.values():
        assert f"line {line}:" in texts
    for name in ("parallelism.context_parallel_degree", "parallelism.expert_parallel_degree", "router",
                 "OptimizersInBackwardContainer.Config: AdamW in one step is priced"):  # fmt: skip
        assert name in texts


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "unknown function"),
        ("bse", "did you mean 'base'"),
        ("nothing", r"nothing of .* must return a Trainer.Config"),
        ("again", r"again of .* must return a Trainer.Config"),
    ],
)
def test_a_function_that_makes_no_configuration_is_refused(name, message, file):
    with pytest.raises(ValueError, match=message):
        read_torchtitan(f"{file}:{name}" if name else file, 8)


@pytest.mark.parametrize("text", ["def f(:", "x = " + "(" * 500, "\0"])
def test_a_file_that_is_no_python_is_one_error(text, file):
    file.write_text(text)
    with pytest.raises(ValueError, match="must be Python"):
        read_torchtitan(f"{file}:f", 8)


def test_a_checkpoint_that_is_only_changed_is_the_default_of_torchtitan(file):
    file.write_text(
        "def f():\n"
        '    config = Trainer.Config(model_spec=model_registry("8B"))\n'
        "    config.activation_checkpoint.debug = True\n"
        "    return config\n"
    )
    assert read_torchtitan(file, 8).record["recompute"] == ["selective"]


def test_a_single_function_needs_no_name_and_an_unknown_folder_is_no_model(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text('def only():\n    return Trainer.Config(model_spec=model_registry("8B"))\n')
    with pytest.raises(ValueError, match="unknown model.name"):
        read_torchtitan(path, 8)
