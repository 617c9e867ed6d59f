"""A plan as the configuration of training software: `write(plan, tool)`; the readers of this package read it back.

A plan is a mapping with one value per setting, under the names of `lablib.plan.Parallel` and `lablib.plan.predict`; a
missing one has its default there. Each writer collects the choices that its software does not have, and one error names
all of them. Choices that are made outside of the file (in the program, on the command line) are remarks.

    deepspeed    batch, ZeRO, offload, precision, optimizer         JSON
    megatron     model, split, batch, precision, recomputation      options, one per line: pretrain_gpt.py $(cat FILE)
    torchtitan   the same, for its models and flavors               TOML
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lablib.errors import unknown_name
from lablib.signature import checked

TOOLS = ("deepspeed", "megatron", "torchtitan")
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        **dict.fromkeys(("data", "tensor", "pipeline", "context", "expert", "chunks", "replicas", "micro_batch"), 1),
        **dict.fromkeys(("expert_tensor", "sequence_parallel", "model", "seq_len", "stack"), None),
        **{"batch": 1, "zero_stage": 0, "reshard_after_forward": True, "zero_plus_plus": (), "offload": ()},
        **{"precision": "bfloat16", "recompute": "none", "schedule": "1f1b", "optimizer": "adamw"},
        **{"compression": "none", "trainable": "all"},
    }
)


@dataclass(frozen=True, slots=True)
class Written:
    """A configuration."""

    text: str  # the file
    remarks: tuple[str, ...] = ()  # choices of the plan that are made outside of it, as sentences


class Draft:
    """A plan while it is written: its settings, and the choices that the software does not have.

    Raises ValueError for a setting with an unknown name.
    """

    def __init__(self, plan: Mapping[str, Any], tool: str):
        for name in plan:
            if name not in DEFAULTS:
                raise unknown_name("setting", name, list(DEFAULTS))
        self._plan, self._tool = {**DEFAULTS, **plan}, tool
        self._refused, self._remarks = list[str](), list[str]()

    def __getitem__(self, name: str) -> Any:
        return self._plan[name]

    def named(self, *names: str) -> str:
        """The settings of these names that are not the default, as text."""
        return ", ".join(f"{name} {self[name]}" for name in names if self[name] != DEFAULTS[name])

    def choose(self, name: str, known: Mapping[Any, Any]) -> Any:
        """The software's word for a choice; refused if it has none."""
        if self[name] not in known:
            self.refuse(f"{name} {self[name]!r} (it has {', '.join(map(str, known))})")
        return known.get(self[name])

    def refuse(self, reason: str) -> None:
        """Note a choice that the software does not have; an empty reason is none."""
        self._refused += [reason] if reason else []

    def remark(self, sentence: str) -> None:
        self._remarks.append(sentence)

    def done(self, text: Callable[[], str]) -> Written:
        """The configuration. Raises ValueError: choices that the software does not have, all in one message."""
        if self._refused:
            raise ValueError(f"{self._tool} cannot express {'; '.join(self._refused)}: choose another plan")
        return Written(text(), tuple(self._remarks))


@checked
def write(plan: Mapping[str, Any], tool: str, gpus_per_node: int | None = None) -> Written:
    """A plan as a configuration of "deepspeed", "megatron" or "torchtitan".

    Arguments:
        plan: name of a setting -> its value; `model` is a `Transformer`.
        gpus_per_node: for DeepSpeed's second copy of the parameters in each node (hpZ).

    ValueError: an unknown tool or setting, or choices that the tool does not have.
    """
    from lablib.configs.write_deepspeed import write_deepspeed
    from lablib.configs.write_megatron import write_megatron
    from lablib.configs.write_torchtitan import write_torchtitan

    if tool not in TOOLS:
        raise unknown_name("tool", tool, TOOLS)
    draft = Draft(plan, tool)
    if tool == "deepspeed":
        return write_deepspeed(draft, gpus_per_node)
    return write_megatron(draft) if tool == "megatron" else write_torchtitan(draft)
