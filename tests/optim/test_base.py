"""What all optimizers share: groups, closures, missing gradients, state that is checked, saved, loaded and counted."""

import copy
import inspect
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lablib.optim.adafactor import Adafactor
from lablib.optim.adam8bit import Adam8bit
from lablib.optim.adam_bf16 import AdamBF16
from lablib.optim.adamw import AdamW
from lablib.optim.galore import GaLore
from lablib.optim.lamb import LAMB
from lablib.optim.lion import Lion
from lablib.optim.muon import Muon
from lablib.optim.q_galore import QGaLore
from lablib.optim.soap import SOAP
from lablib.optim.sophia import SophiaG
from tests.optim.drawn import MAKE, assert_near, gradients, parameters, run

MATRICES = [(6, 4), (4, 5)]
every = pytest.mark.parametrize("name", MAKE)


@pytest.fixture(scope="module", autouse=True)
def rounding_to_nearest():
    """What draws at random would not do the same twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lablib.optim.adam_bf16.stochastic_bf16", lambda x, generator: x.bfloat16())
        yield


ADAM = {"betas": (0.9, 0.999), "eps": 1e-8}
GALORE = {"lr": 1e-2, **ADAM, "weight_decay": 0.0, "rank": 128, "update_proj_gap": 200, "scale": 0.25}
# Of torch's own: their defaults. Of the others: the papers', or the authors' code where the paper has none.
DEFAULTS: dict[Any, dict[str, Any]] = {
    AdamW: torch.optim.AdamW([torch.zeros(1)]).defaults,
    Adafactor: torch.optim.Adafactor([torch.zeros(1)]).defaults,
    Muon: {**torch.optim.Muon([torch.zeros(1, 1)]).defaults, "adjust_lr_fn": "original"},
    LAMB: {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01},
    Lion: {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0},
    SophiaG: {"lr": 1e-4, "betas": (0.96, 0.99), "gamma": 0.05, "eps": 1e-12, "weight_decay": 0.1},
    Adam8bit: {"lr": 1e-3, **ADAM, "weight_decay": 1e-2, "block_size": 256, "min_8bit_size": 4096},
    AdamBF16: {"lr": 1e-3, **ADAM, "weight_decay": 1e-2},
    SOAP: {"lr": 3e-3, "betas": (0.95, 0.95), "eps": 1e-8, "weight_decay": 0.01}
    | {"precondition_frequency": 10, "max_precond_dim": 10_000},
    GaLore: GALORE,
    QGaLore: {**GALORE, "cos_threshold": 0.4, "queue_size": 5, "gamma_proj": 2}
    | {"block_size": 256, "min_8bit_size": 4096},
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults(kind):
    ours = dict(kind(parameters([(128, 128)])).defaults)
    assert not ours.pop("check_finite") and ours and all(DEFAULTS[kind][name] == value for name, value in ours.items())


def values(params):
    return [param.detach().clone() for param in params]


@every
def test_groups_have_settings_of_their_own(name):
    """Two groups step as two optimizers do."""
    a, b, steps = *parameters(MATRICES), gradients(MATRICES, 4)
    run(MAKE[name]([{"params": [a]}, {"params": [b], "lr": 0.5, "weight_decay": 0.3}], lr=0.1), steps)
    c, d = parameters(MATRICES)
    run(MAKE[name]([c], lr=0.1), [[g[0]] for g in steps])
    run(MAKE[name]([d], lr=0.5, weight_decay=0.3), [[g[1]] for g in steps])
    assert_near([a, b], [c, d])
    assert not torch.equal(a, parameters(MATRICES)[0]) and not torch.equal(b, parameters(MATRICES)[1])


@every
def test_a_changed_rate_takes_effect(name):
    """As a schedule changes it: with a rate of 0 nothing moves."""
    params = parameters(MATRICES)
    optimizer = MAKE[name](params, lr=0.1)
    run(optimizer, gradients(MATRICES, 2))
    before = values(params)
    optimizer.param_groups[0]["lr"] = 0.0
    run(optimizer, gradients(MATRICES, 2))
    assert_near(params, before)


@every
def test_a_parameter_without_gradient_is_left_alone(name):
    params = parameters(MATRICES)
    optimizer = MAKE[name](params, lr=0.1, weight_decay=0.5)
    run(optimizer, [[g[0], None] for g in gradients(MATRICES, 3)])
    assert torch.equal(params[1], parameters(MATRICES)[1])
    assert params[1] not in optimizer.state and optimizer.state[params[0]]
    params[0].requires_grad_(False)
    params[0].grad = None
    frozen = params[0].clone()
    optimizer.step()  # nothing has a gradient
    assert torch.equal(params[0], frozen)


@every
def test_a_group_may_be_empty_and_a_list_may_not(name):
    params = parameters(MATRICES)
    optimizer = MAKE[name]([{"params": []}, {"params": params}], lr=0.1)
    run(optimizer, gradients(MATRICES, 2))
    assert len(optimizer.state) == 2
    with pytest.raises(ValueError, match="empty parameter list"):
        MAKE[name]([])


@every
def test_a_closure_computes_gradients_and_its_loss_comes_back(name):
    (w,), target = parameters([(6, 4)]), parameters([(6, 4)], seed=5)[0].detach()
    optimizer = MAKE[name]([w], lr=0.01)

    def closure():
        optimizer.zero_grad()
        loss = ((w - target) ** 2).sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(20)]
    assert losses[0] == ((parameters([(6, 4)])[0] - target) ** 2).sum().item()
    assert losses[-1] < losses[0]


@every
def test_a_saved_state_goes_on_where_it_was(name):
    steps = gradients(MATRICES, 6)
    whole = parameters(MATRICES)
    run(MAKE[name](whole, lr=0.1), steps)
    params = parameters(MATRICES)
    first = MAKE[name](params, lr=0.1)
    run(first, steps[:3])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    again = MAKE[name](params, lr=9.0)  # settings are saved too
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again.state_bytes() == first.state_bytes()
    run(again, steps[3:])
    assert_near(params, whole, 0.0)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_state_has_the_dtypes_that_were_saved(name, dtype):
    params = parameters(MATRICES, dtype)
    first, second = MAKE[name](params), MAKE[name](params)
    run(first, gradients(MATRICES, 2, dtype))
    second.load_state_dict(first.state_dict())
    for param in params:
        for key, value in first.state[param].items():
            other = second.state[param][key]
            assert (
                torch.equal(other, value) and other.dtype == value.dtype if torch.is_tensor(value) else other == value
            )


@every
def test_it_is_copied_and_pickled(name):
    optimizer = MAKE[name](parameters(MATRICES), lr=0.1)
    run(optimizer, gradients(MATRICES, 2))
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert twin.state_bytes() == optimizer.state_bytes() > 0
        run(twin, gradients(MATRICES, 2, seed=11))


@every
def test_bad_settings_are_refused_in_any_group(name):
    make, (a, b) = MAKE[name], parameters(MATRICES)
    rule = "must be a finite number, 0 or more: got -1.0; try"
    with pytest.raises(ValueError, match=f"weight_decay {rule}"):
        make([{"params": [a]}, {"params": [b], "weight_decay": -1.0}])
    optimizer = make([a])
    with pytest.raises(ValueError, match=f"lr {rule} lr={optimizer.defaults['lr']}"):
        optimizer.add_param_group({"params": [b], "lr": -1.0})
    assert len(optimizer.param_groups) == 1


def test_every_optimizer_is_a_file_under_120_lines():
    files = {kind: Path(inspect.getfile(kind)) for kind in DEFAULTS}
    long = {path.name: count for path in files.values() if (count := len(path.read_text("utf-8").splitlines())) >= 120}
    assert len(files) == 11 and not long


@every
def test_the_state_of_another_model_is_refused_and_nothing_is_changed(name):
    first, second = MAKE[name](parameters(MATRICES)), MAKE[name](parameters([(6, 4), (4, 6)]))
    run(first, gradients(MATRICES, 2))
    with pytest.raises(
        ValueError, match=r"parameter 1 of group 0 \(shape \(4, 6\)\) has the shape .*load the state of a"
    ):
        second.load_state_dict(first.state_dict())
    assert not second.state
    third = MAKE[name](parameters([*MATRICES, (2, 2)]))
    with pytest.raises(ValueError, match="doesn't match the size"):
        third.load_state_dict(first.state_dict())


# The others keep bytes or BF16 whatever the dtype of a model is.
@pytest.mark.parametrize("name", [name for name in MAKE if name not in ("adam8bit", "adam_bf16", "q_galore")])
def test_the_state_of_a_model_of_another_dtype_is_refused(name):
    """It comes back as it was saved: the next step would have two dtypes."""
    first, second = MAKE[name](parameters(MATRICES, torch.bfloat16)), MAKE[name](parameters(MATRICES))
    run(first, gradients(MATRICES, 1, torch.bfloat16))
    with pytest.raises(
        ValueError, match=r"of the same dtypes: \w+ of parameter 0 .* is torch.bfloat16, not torch.float64"
    ):
        second.load_state_dict(first.state_dict())
    assert not second.state


def test_the_state_of_torchs_optimizer_is_refused_and_one_from_before_a_schedule_is_not():
    theirs = torch.optim.AdamW(parameters(MATRICES))
    run(theirs, gradients(MATRICES, 1))
    with pytest.raises(ValueError, match="settings lack check_finite, which AdamW has; load the state that a AdamW of"):
        AdamW(parameters(MATRICES)).load_state_dict(theirs.state_dict())
    before, scheduled = AdamW(parameters(MATRICES)), AdamW(parameters(MATRICES))
    run(before, gradients(MATRICES, 1))
    torch.optim.lr_scheduler.LambdaLR(scheduled, lambda step: 1.0)  # adds `initial_lr` to the groups
    scheduled.load_state_dict(before.state_dict())
    assert scheduled.state_bytes() == before.state_bytes() > 0


def test_the_state_of_another_optimizer_is_refused():
    first = Lion(parameters(MATRICES))
    run(first, gradients(MATRICES, 1))
    with pytest.raises(
        ValueError, match="has exp_avg, and AdamW keeps step, exp_avg, exp_avg_sq; load the state that a"
    ):
        AdamW(parameters(MATRICES)).load_state_dict(first.state_dict())


@every
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_named_when_asked(name, bad):
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 5, bias=False))
    optimizer = MAKE[name]([{"params": list(model.named_parameters())}], check_finite=True)
    grads = [torch.ones_like(param) for param in model.parameters()]
    grads[1][2, 3] = bad
    for param, grad in zip(model.parameters(), grads, strict=True):
        param.grad = grad
    before = values(model.parameters())
    count = "1 NaN and 0 infinite" if bad != bad else "0 NaN and 1 infinite"
    with pytest.raises(ValueError, match=f"the gradient of 1.weight has {count} numbers of 30; skip the step"):
        optimizer.step()
    assert_near(list(model.parameters()), before, 0.0)
    assert not optimizer.state


@every
def test_sparse_and_complex_gradients_are_refused(name):
    (w,) = parameters([(6, 4)])
    w.grad = torch.zeros(6, 4, dtype=torch.float64).to_sparse()
    with pytest.raises(
        RuntimeError, match=r"does not support sparse gradients: parameter 0 of group 0 \(shape \(6, 4\)\)"
    ):
        MAKE[name]([w]).step()
    z = nn.Parameter(torch.zeros(6, 4, dtype=torch.complex64))
    z.grad = torch.ones_like(z)
    with pytest.raises(RuntimeError, match="does not support complex gradients"):
        MAKE[name]([z]).step()


@every
@settings(max_examples=15)
@given(rows=st.integers(2, 9), columns=st.integers(2, 9), others=st.integers(0, 2))
def test_a_batch_of_parameters_steps_as_each_alone(name, rows, columns, others):
    shapes = [(rows, columns), (columns, rows)] + [(rows, rows)] * others
    params, steps = parameters(shapes), gradients(shapes, 3)
    run(MAKE[name](params, lr=0.1), steps)
    for i, alone in enumerate(parameters(shapes)):
        run(MAKE[name]([alone], lr=0.1), [[g[i]] for g in steps])
        assert_near([params[i]], [alone])
