"""Every knob of the planner changes something: taken from the fields of its records, so that none is left out.

The fields of a stack: test_stack.py.

A field is tried with several values on several plans. It passes where one of them changes a number of the prediction;
what people alone read is in LABELS. A name may say whose it is (torch's own AdamW, a V100): it is not held to anything.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from itertools import chain
from typing import Any

import pytest

from lablib.hardware import CLUSTERS, LINKS, Dragonfly, Torus
from lablib.models import TRANSFORMERS, Experts
from lablib.models.transformer import Latent, Window
from lablib.plan import Derating, Parallel, predict
from lablib.plan.arguments import OFFLOAD, PRECISIONS
from lablib.plan.gradient_compression import COMPRESSIONS, GradientCompression
from lablib.plan.optimizers import OPTIMIZERS, Optimizer
from lablib.plan.stack import STACKS

LABELS = ("source", "profile")
# The host's part of a kernel's time, of which the planner reads the whole; what a CPU alone has, and its ranks share.
OF_THE_SIMULATOR = ("launch_s", "element_s", "shared_cores")
GPT = replace(TRANSFORMERS["gpt3-1.3b"], num_layers=8)
MIXTURE, LATENT = (replace(TRANSFORMERS[name], num_layers=4) for name in ("mixtral-8x7b", "deepseek-v3"))
WINDOWED = replace(GPT, window=Window(64))
A100, V100, B200 = CLUSTERS["dgx-a100"], CLUSTERS["dgx-v100"], CLUSTERS["dgx-b200"]
BASES: tuple[dict[str, Any], ...] = (
    {"model": GPT, "cluster": A100, "parallel": Parallel(data=16), "batch": 32},
    {"model": GPT, "cluster": A100, "parallel": Parallel(tensor=2, pipeline=2), "batch": 8, "recompute": "selective"},
    {"model": GPT, "cluster": B200, "parallel": Parallel(data=16, zero_stage=3), "batch": 16, "stack": "torch-compile"},
    {"model": GPT, "cluster": B200, "parallel": Parallel(data=2), "batch": 2, "precision": "float8"},
    {"model": WINDOWED, "cluster": A100, "parallel": Parallel(data=16), "batch": 32},
    {"model": MIXTURE, "cluster": A100, "parallel": Parallel(data=16, expert=8, zero_stage=1), "batch": 32},
    {"model": LATENT, "cluster": A100, "parallel": Parallel(data=16, tensor=2, expert=16), "batch": 32},
    {"model": GPT, "cluster": V100, "parallel": Parallel(data=4), "batch": 8, "precision": "float16"},
    {"model": GPT, "cluster": A100, "parallel": Parallel(data=4, zero_stage=3), "batch": 4, "stack": "torch"},
    {"model": GPT, "cluster": A100, "parallel": Parallel(data=2, context=2), "batch": 4, "recompute": "full"},
    {"model": GPT, "cluster": A100, "parallel": Parallel(pipeline=4), "batch": 8, "stack": "megatron-deepspeed"},
    {"model": GPT, "cluster": A100, "parallel": Parallel(pipeline=2, chunks=2), "batch": 8, "schedule": "interleaved"},
    {
        "model": GPT,
        "cluster": A100,
        "parallel": Parallel(data=4),
        "batch": 16,
        "offload": OFFLOAD[:2],
        "trainable": "all",
    },
    {"model": GPT, "cluster": B200, "parallel": Parallel(data=4, zero_stage=3), "batch": 4, "offload": OFFLOAD},
    {"model": GPT, "cluster": B200, "parallel": Parallel(tensor=8), "batch": 8},
    {"model": GPT, "cluster": B200.replace(uses_nvls=True), "parallel": Parallel(tensor=8), "batch": 8},
)
TEXTS = (
    *PRECISIONS,
    *("none", "selective", "full", "every 2", "first 1", "gpipe", "zb-h1", "interleaved", "zb-v", "lora", "pcie3"),
    *("unfused", "products", "deduplicated", "all_gather", "two_phase", "int8", "galore", "lion", "megatron-2021"),
    *("gloo", "swiglu", "gelu", "rotary", "learned", "rms", "layer", "parallel", "llama-3-8b", "dgx-h100"),
)
NUMBERS = (0, 1, 2, 3, 4, 8, 64, 1e-4, 0.1, 0.5, 3.0, 100.0, 1e4, 1e12)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        *NUMBERS,
        *TEXTS,
        ("qwZ",),
        ("hpZ",),
        ("qgZ",),
        ("optimizer",),
        ("activations",),
        ("parameters",),
        (9.0, 9.0),
    ),
    *(Parallel(data=2), Derating(step_s=1.0), LINKS["pcie3"], {"float32": 1e12, "float16": 2e12, "bfloat16": 9e12}),
    *(64, 256, 2048, 1024 * 1024, 5 * 10**9, 10**12, (64, 64), {"bfloat16": 0.1}, Experts(4, 2, 1024)),
    *(Latent(64, 64, 32, 64, 64), Window(64, 4), STACKS["torch-compile"], OPTIMIZERS["sgd"], COMPRESSIONS["int4"]),
    *(V100.device, Torus((4, 4)), Dragonfly(2, 2), ("tensor", "pipeline", "context", "expert", "data")),
)


def outcome(question: dict[str, Any]) -> Any:
    """The numbers of a prediction, or that it is refused."""
    found = predict(**question)
    return (found.step_time_s, found.parts, found.communication, found.memory, found.memory_limit_bytes) + (
        found.mfu,
        found.hfu,
        found.reserved_bytes,
        found.device_bytes,
        found.energy_j(),
    )


def is_alive(questions: Callable[[dict[str, Any], Any], Iterator[Any]]) -> bool:
    """Whether a value changes the prediction of some base."""
    for base in BASES:
        for value in VALUES:
            try:
                pairs = list(questions(base, value))
            except (ValueError, TypeError, AttributeError):
                continue  # a value of another type: no test of the knob
            for before, after in pairs:
                try:
                    if outcome(before) != outcome(after):
                        return True
                except (ValueError, TypeError):
                    continue
    return False


def records() -> Iterator[tuple[type, Any]]:
    """Each record of the planner's inputs, and how a question gets a changed one."""

    def of(name: str, default: Any) -> Callable[..., Any]:
        def changed(base: dict[str, Any], field: str, value: Any) -> Iterator[Any]:
            now = default(base)
            for one in now if isinstance(now, tuple) else (now,):
                if one is not None and getattr(one, field) != value:
                    with suppress(ValueError, TypeError):  # refused: try another
                        yield base | {name: one}, base | {name: replace(one, **{field: value})}

        return changed

    def inside(outer: str, part: str) -> Callable[..., Any]:
        def changed(base: dict[str, Any], field: str, value: Any) -> Iterator[Any]:
            whole = base[outer]
            now = getattr(whole, part)
            if now is not None and getattr(now, field) != value:
                yield base, base | {outer: replace(whole, **{part: replace(now, **{field: value})})}

        return changed

    yield Optimizer, of("optimizer", lambda _: tuple(OPTIMIZERS[n] for n in ("adamw", "lamb", "galore", "adam-8bit")))
    methods = tuple(COMPRESSIONS[name] for name in ("int8", "top-k", "powersgd"))
    yield GradientCompression, of("compression", lambda _: methods)
    yield Derating, of("derating", lambda _: (Derating(), Derating(is_power_limited=False)))
    yield type(GPT), of("model", lambda base: base["model"])
    yield Experts, inside("model", "experts")
    yield Latent, inside("model", "latent")
    yield Window, inside("model", "window")
    yield type(A100), of("cluster", lambda base: base["cluster"])
    yield type(A100.device), inside("cluster", "device")
    between, within = inside("cluster", "inter"), inside("cluster", "intra")
    yield type(A100.inter), lambda *asked: chain(between(*asked), within(*asked))


KNOBS = [
    (kind, one.name, change)
    for kind, change in records()
    for one in fields(kind)
    if one.name not in ("name", *LABELS, *OF_THE_SIMULATOR)
]


@pytest.mark.parametrize(("kind", "name", "change"), KNOBS, ids=[f"{kind.__name__}.{name}" for kind, name, _ in KNOBS])
def test_every_field_changes_a_prediction(kind, name, change):
    assert is_alive(lambda base, value: change(base, name, value))
