"""What a prediction says of an optimizer: less state is never more memory, and what it computes takes its time.

The formulas here are written down a second time, from the papers, for one rank without masters: they share nothing
with lablib/plan/optimizers.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.hardware import CLUSTERS
from lablib.models import TRANSFORMERS
from lablib.models.transformer_sizes import layer_matrices, transformer_parameters
from lablib.parallel.zero.sharded_muon_cost import newton_schulz_flops
from lablib.plan import IDEAL, Parallel, predict
from lablib.plan.optimizers import OPTIMIZERS, find_optimizer
from tests.plan.test_metamorphic import STACKS, questions

GPT = TRANSFORMERS["gpt3-1.3b"]

# Bytes a parameter of the layers, from the papers: of matrices with d rows and columns.
FORMULAS: Mapping[str, Callable[[int], float]] = {
    "sgd": lambda d: 0.0,
    "sgd-momentum": lambda d: 4.0,
    "lion": lambda d: 4.0,  # arXiv 2302.06675: one moment
    "adam": lambda d: 8.0,
    "adamw": lambda d: 8.0,
    "lamb": lambda d: 8.0,
    "sophia": lambda d: 8.0,  # arXiv 2305.14342: a moment and a Hessian's diagonal
    "adam-8bit": lambda d: 2 + 8 / 256,  # arXiv 2110.02861: two bytes, and two largest values in 32 bits a block
    "adafactor": lambda d: 8 / d,  # arXiv 1804.04235: a sum for each row and each column
    "muon": lambda d: 4.0,  # arXiv 2502.16982, section 2.2: one moment of a matrix
    "galore": lambda d: 4 * 3 * min(1024, d) / d,  # arXiv 2403.03507, table 1: m r + 2 n r numbers
}


def state_bytes(question: dict[str, Any], name: Any) -> float:
    """Bytes of the optimizer on the stage that keeps most of them."""
    found = predict(**(question | {"optimizer": name}))
    return max(stage["optimizer state"] for stage in found.memory)


def test_every_optimizer_has_a_formula_here():
    assert set(FORMULAS) == set(OPTIMIZERS)


@pytest.mark.parametrize("stack", ["megatron-core", "torch"])
@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_one_rank_keeps_what_the_paper_says(name, stack):
    question: dict[str, Any] = {"model": GPT, "cluster": "dgx-h100", "precision": "float32", "stack": stack}
    sizes, d = transformer_parameters(GPT), GPT.d_model
    ends = sizes.total - sizes.layers
    # The ends are no matrices of d rows: GaLore leaves them alone, Muon gives them to AdamW, Adafactor has their sums.
    other: dict[str, float] = {"muon": 8.0, "galore": 8.0, "adafactor": 4 / d + 4 / GPT.vocab_size}
    at_ends = other.get(name, FORMULAS[name](d))
    expected = sizes.layers * FORMULAS[name](d) + ends * at_ends
    assert state_bytes(question, name) == pytest.approx(expected, rel=1e-3, abs=1)


@given(question=questions((*STACKS, "torch", "torch-megatron")))
def test_less_state_is_never_more_memory(question):
    question |= {"trainable": "all", "offload": ()}
    kept = {name: state_bytes(question, name) for name in OPTIMIZERS}
    least_first = ("sgd", "adam-8bit", "lion", "adamw")
    assert all(kept[a] <= kept[b] + 64 for a, b in zip(least_first, least_first[1:], strict=False)), kept
    assert kept["sgd"] <= kept["adafactor"] <= kept["adam-8bit"] + 64, kept
    assert kept["lion"] == kept["sgd-momentum"] and kept["adamw"] == kept["sophia"] == kept["lamb"] == kept["adam"]
    assert kept["lion"] <= kept["muon"] <= kept["adamw"], kept
    assert kept["galore"] <= 1.5 * kept["adamw"], kept  # of a full rank: its projection besides


def seconds(optimizer: Any, **changes: Any) -> float:
    """Of the optimizer, without derating."""
    question: dict[str, Any] = {"batch": 8, "parallel": Parallel(data=8), "derating": IDEAL} | changes
    return predict("llama-2-7b", "dgx-a100", **question, optimizer=optimizer).parts["optimizer"]


def test_sophias_hessian_takes_a_twentieth_of_all_passes():
    # Section 3.1: every tenth step, 240 of 480 sequences.
    sophia, without = find_optimizer("sophia"), replace(find_optimizer("sophia"), extra_gradients=0.0)
    found = predict("llama-2-7b", "dgx-a100", Parallel(data=8), 8, derating=IDEAL, optimizer=without)
    passes_s = found.step_time_s - sum(found.parts[name] for name in ("optimizer", "data axis", "fixed"))
    assert seconds(sophia) - seconds(without) == pytest.approx(0.05 * passes_s, rel=1e-6)


def test_galores_projection_takes_products_and_a_decomposition():
    galore = find_optimizer("galore")
    device = CLUSTERS["dgx-a100"].device
    layers = transformer_parameters(TRANSFORMERS["llama-2-7b"]).layers
    never = replace(galore, renew_every=10**9)
    # [k, d] x [d, d] and back, 2 FLOPs for each number and direction: at least the time of the peak.
    least_s = 4 * (galore.rank or 0) * layers / device.peak("bfloat16")
    assert least_s < seconds(never) - seconds("adamw") < 3 * least_s
    renewal_s = (seconds(galore) - seconds(never)) * galore.renew_every
    assert 300 < renewal_s < 1200  # about ten minutes for 7B
    assert seconds(replace(galore, rank=256)) < seconds(galore)


def test_muon_takes_the_flops_of_newton_schulz_and_shares_them_with_zero():
    without = replace(find_optimizer("muon"), newton_schulz_steps=0)
    model, device = TRANSFORMERS["llama-2-7b"], CLUSTERS["dgx-a100"].device
    matrices = layer_matrices(model, is_expert_layer=False)
    shapes = [(matrix.rows, matrix.columns) for matrix in matrices for _ in range(matrix.count)]
    flops = model.num_layers * sum(newton_schulz_flops(shape) for shape in shapes)
    added_s = [
        seconds("muon", parallel=Parallel(data=8, zero_stage=stage))
        - seconds(without, parallel=Parallel(data=8, zero_stage=stage))
        for stage in (0, 1, 3)
    ]
    least_s = flops / device.peak("bfloat16")
    assert least_s < added_s[0] < 2 * least_s
    assert added_s[1] == pytest.approx(added_s[0] / 8, rel=0.05) == added_s[2]


@given(data=st.sampled_from([1, 2, 8, 16]), tensor=st.sampled_from([1, 2, 8]), stage=st.sampled_from([0, 1, 3]))
def test_muon_brings_split_matrices_together(data, tensor, stage):
    split = {"parallel": Parallel(data=data, tensor=tensor, zero_stage=stage), "batch": 16, "stack": "megatron-core"}
    found, adamw = (predict(GPT, "dgx-a100", **split, optimizer=name) for name in ("muon", "adamw"))
    more = {axis: found.communication[axis][0] - adamw.communication[axis][0] for axis in ("tensor", "data")}
    assert (more["tensor"] > 0) == (tensor > 1) and (more["data"] > 0) == (stage == 3 and data > 1)
    assert sum(found.parts.values()) == pytest.approx(found.step_time_s)
    if tensor == 1 and stage == 3 and 1 < data <= 8:
        # There and back, 2 bytes a number of this rank's share, (n - 1) / n of it to others.
        least_s = 4 * transformer_parameters(GPT).layers / data * (data - 1) / data / 300e9
        assert least_s < more["data"] < 1.6 * least_s + 1e-4


def test_kernels_of_each_tensor_cost_their_launches():
    eight = find_optimizer("adam-8bit")
    assert seconds(replace(eight, kernels=50)) > seconds(eight)


def test_an_update_that_is_written_out_counts_where_activations_are_few():
    question: dict[str, Any] = {"model": GPT, "cluster": "dgx-h100", "seq_len": 8}
    lamb, adam = (predict(**question, optimizer=name).peak_memory_bytes for name in ("lamb", "adamw"))
    assert lamb - adam == pytest.approx(4 * transformer_parameters(GPT).total, rel=0.05)
