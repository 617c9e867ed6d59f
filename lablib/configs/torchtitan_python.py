"""The tables of torchtitan.py from a Python file of torchtitan: a function that returns a `Trainer.Config`.

Since February 2026 torchtitan has such functions instead of TOML, in torchtitan/models/MODEL/config_registry.py. The
file is parsed and never run. Read are literals, arithmetic, names and fields that were assigned before, calls of other
functions of the file, and calls of constructors, whose keywords are the fields:

    Trainer.Config(training=TrainingConfig(..), parallelism=ParallelismConfig(..), compile=CompileConfig(..))
    model_registry("8B", converters=[Float8LinearConverter.Config(..)])      model.flavor, model.converters
    SelectiveAC.Config(), FullAC.Config(), None                              "selective" (op), "full", "none"
    num_tokens_per_microbatch_per_dp_rank, max_context_length                local_batch_size * seq_len, seq_len
    config.training.steps = 10                                               a field changed later

The model is the name of the file's folder. Branches, loops and other expressions are named with their lines.

Source: github.com/pytorch/torchtitan at b5bcd76c (2026-08-21), torchtitan/config/configs.py and trainer.py; at 9810191b
(2026-02-23) for older fields, which are those of the TOML.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lablib.configs.reading import Omission, text_of
from lablib.errors import unknown_name

_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = MappingProxyType(
    {ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub, ast.FloorDiv: operator.floordiv}
)
_PRICED = ("training", "parallelism", "activation_checkpoint", "compile", "optimizer", "model_spec")
_ADAMW = ("default_adamw", "OptimizersContainer.Config", "")
_WITHOUT_COST = frozenset(
    "hf_assets_path dump_folder profiler metrics tokenizer dataloader lr_scheduler checkpoint comm validator debug "
    "loss model_converters".split()
)
_UNREAD = object()  # the value of an expression that is not read
_DEPTH = 8  # of calls


@dataclass
class _Made:
    """An object made by a call of a constructor."""

    name: str
    given: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)


class _File:
    """The functions of a file, and the lines that were not read."""

    def __init__(self, text: str, where: str):
        try:
            body = ast.parse(text).body
        except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
            raise ValueError(f"{where} must be Python: {type(error).__name__}: {error}") from None
        self.functions = {each.name: each for each in body if isinstance(each, ast.FunctionDef)}
        self.unread = list[str]()
        self.names: dict[str, Any] = {}
        self._run([each for each in body if isinstance(each, ast.Assign)], self.names, 0)
        self.unread.clear()

    def call(self, name: str, depth: int = 0) -> Any:
        return self._run(self.functions[name].body, dict(self.names), depth)

    def _run(self, body: list[ast.stmt], names: dict[str, Any], depth: int) -> Any:
        for each in body:
            if isinstance(each, ast.Return):
                return self._value(each.value, names, depth) if each.value else None
            if isinstance(each, (ast.Assign, ast.AnnAssign)):
                value = self._value(each.value, names, depth) if each.value else _UNREAD
                for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
                    holder = self._value(target.value, names, depth) if isinstance(target, ast.Attribute) else None
                    if isinstance(target, ast.Name):
                        names[target.id] = value
                    elif isinstance(target, ast.Attribute) and isinstance(holder, _Made):
                        holder.fields[target.attr] = value
                    else:
                        self.unread.append(f"line {each.lineno}: {ast.unparse(target)[:60]}")
            elif not isinstance(each, (ast.Import, ast.ImportFrom, ast.Assert, ast.FunctionDef, ast.Pass)) and not (
                isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
            ):
                self.unread.append(f"line {each.lineno}: {ast.unparse(each).splitlines()[0][:60]}")
        return None

    def _value(self, node: ast.expr, names: dict[str, Any], depth: int) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(each, names, depth) for each in node.elts]
        if isinstance(node, ast.Name):
            return names.get(node.id, _UNREAD)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand, names, depth)
            return -value if type(value) in (int, float) else _UNREAD
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            left, right = self._value(node.left, names, depth), self._value(node.right, names, depth)
            if {type(left), type(right)} <= {int, float} and (right or not isinstance(node.op, ast.FloorDiv)):
                return _ARITHMETIC[type(node.op)](left, right)
        if isinstance(node, ast.Attribute):
            holder = self._value(node.value, names, depth)
            if not isinstance(holder, _Made):
                return _UNREAD
            if node.attr in _PRICED:  # a section that was not given has its defaults
                return holder.fields.setdefault(node.attr, _Made(""))
            return holder.fields.get(node.attr, _UNREAD)
        if not isinstance(node, ast.Call):
            return _UNREAD
        name = ast.unparse(node.func)
        if name in self.functions and not node.args and not node.keywords and depth < _DEPTH:
            return self.call(name, depth + 1)
        made = _Made(name, [self._value(each, names, depth) for each in node.args])
        made.fields = {each.arg or "**": self._value(each.value, names, depth) for each in node.keywords}
        return made


def read_python(path: str | Path) -> tuple[dict[str, Any], list[Omission]]:
    """The tables of FILE.py, or of FILE.py:FUNCTION, and what could not be read.

    ValueError: a missing file, no Python, no such function, or one that returns no configuration.
    """
    file, _, name = str(path).partition(".py:")
    file = Path(file if file.endswith(".py") else f"{file}.py")
    found = _File(text_of(file), str(file))
    if not name and len(found.functions) == 1:
        name = next(iter(found.functions))
    if name not in found.functions:
        raise unknown_name("function (FILE.py:FUNCTION)", name, list(found.functions))
    config = found.call(name)
    if not isinstance(config, _Made) or not config.name.endswith("Config"):
        raise ValueError(f"{name} of {file} must return a Trainer.Config(..): it could not be read; give a TOML file")
    return _tables(config, file.resolve().parent.name, found.unread)


def _tables(config: _Made, model: str, unread: list[str]) -> tuple[dict[str, Any], list[Omission]]:
    given = {name: config.fields.get(name) for name in _PRICED}
    sections = {name: dict(made.fields) for name, made in given.items() if isinstance(made, _Made)}
    unread += [name for name, made in given.items() if made is _UNREAD]
    spec, made = given["model_spec"], sections.pop("model_spec", {})
    fields = {name: {k: v for k, v in each.items() if _is_plain(v)} for name, each in sections.items()}
    unread += [f"{name}.{each}" for name, section in sections.items() for each in section if each not in fields[name]]
    if not isinstance(spec, _Made) or not spec.given or not isinstance(spec.given[0], str):
        raise ValueError('model_spec must be model_registry("FLAVOR"): it could not be read; give a TOML file')
    older = config.fields.get("model_converters")
    listed = made.pop("converters", older.fields.get("converters", []) if isinstance(older, _Made) else [])
    converters = [_converter(each) for each in listed if isinstance(each, _Made)] if isinstance(listed, list) else []
    fields["model"] = {"name": model, "flavor": spec.given[0], "converters": converters}
    if not isinstance(listed, list) or len(converters) < len(listed):
        unread.append("model_spec.converters")
    unread += [name for name in config.fields if name not in (*_PRICED, *_WITHOUT_COST)]
    kernel = made.pop("attn_backend", "")
    fields["model"]["flavor"] += f"_{kernel}" if kernel in ("flex", "varlen") else ""
    omissions = [Omission(f"model_registry({name}=..)") for name in made]
    fields["activation_checkpoint"] = _checkpoint(config.fields, fields.pop("activation_checkpoint", {}))
    fields["optimizer"] = {"name": "AdamW"} | fields.pop("optimizer", {})
    if isinstance(chosen := given["optimizer"], _Made) and chosen.name not in _ADAMW:
        omissions.append(Omission(f"{chosen.name}: {fields['optimizer']['name']} in one step is priced"))
    parallelism, training = fields.setdefault("parallelism", {}), fields.setdefault("training", {})
    if fields.get("compile", {}).pop("enable_async_tensor_parallel", False):
        parallelism["enable_async_tensor_parallel"] = True
    _count_sequences(training, parallelism)
    if isinstance(loss := config.fields.get("loss"), _Made) and loss.name.startswith("Chunked"):
        omissions.append(Omission("a loss in chunks: all logits are priced at once"))
    return fields, omissions + [Omission(f"not read, {each}") for each in unread]


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, list) else not (value is _UNREAD or isinstance(value, _Made))


def _converter(made: _Made) -> str:
    name = made.name.removesuffix(".Config")
    kind = "grouped_mm" if "Grouped" in name else "linear"
    width = next((width for word, width in (("MXFP8", "mx"), ("Float8", "float8")) if name.startswith(word)), None)
    return f"quantize.{kind}.{width}" if width else name


def _checkpoint(fields: dict[str, Any], section: dict[str, Any]) -> dict[str, Any]:
    made = fields.get("activation_checkpoint", _Made(""))
    if isinstance(made, _Made) and not made.name:
        made.name = "SelectiveAC.Config"
    if made is None:
        return {"mode": "none"}
    modes = {"Selective": "selective", "Full": "full", "MemoryBudget": "memory_budget"}
    mode = next((mode for word, mode in modes.items() if isinstance(made, _Made) and made.name.startswith(word)), None)
    return section if mode is None else section | {"mode": mode, "selective_ac_option": "op"}


def _count_sequences(training: dict[str, Any], parallelism: dict[str, Any]) -> None:
    """Tokens of a forward pass, and of a step, as sequences."""
    if "seq_len" in training or "local_batch_size" in training:
        return  # older files
    length = training.pop("max_context_length", 2048)
    tokens = training.pop("num_tokens_per_microbatch_per_dp_rank", 16384)
    step, count = training.pop("num_tokens_per_train_step", -1), parallelism.pop("num_pp_microbatches", 1)
    if tokens % length or step % length and step != -1:
        raise ValueError(
            "num_tokens_per_microbatch_per_dp_rank and num_tokens_per_train_step must be multiples of "
            f"max_context_length: got {tokens}, {step} and {length}"
        )
    is_pipeline = parallelism.get("pipeline_parallel_degree", 1) > 1
    parallelism["pipeline_parallel_microbatch_size"] = tokens // length
    training |= {"seq_len": length, "local_batch_size": tokens // length * (count if is_pipeline else 1)}
    training |= {"global_batch_size": step if step == -1 else step // length}
