"""A step of torch.compile on the simulator is the eager step: its values, spans and memory, and a note that says so."""

import sys

import pytest
import torch
from torch import Tensor, nn

from lablib import launch
from lablib.errors import RankError
from lablib.sim.operators.compiled import NOTE

# torch's own, when it imports inductor
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
BACKENDS = ["eager", "aot_eager", "inductor"]


def chain(x: Tensor) -> Tensor:
    return (x.sin() * 2 + 1).relu()


def step(make, in_values: bool = True):
    """Forward, backward and an optimizer's step of a small model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = make(model)(torch.ones(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
    return [param.tolist() for param in model.parameters()] if in_values else None


def same(fn):
    return fn


def spans(run):
    return [(span.rank, span.name, span.start_s, span.end_s, span.size_bytes) for span in run.timeline.spans]


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_step_is_priced_as_the_eager_one(backend, fidelity, recwarn):
    def compiled(fn):
        return torch.compile(fn, backend=backend)

    in_values = fidelity == "values"
    eager, run = (launch(step, way, in_values, ranks=2, fidelity=fidelity) for way in (same, compiled))
    assert run.values == eager.values
    assert spans(run) == spans(eager)
    assert run.notes == (*eager.notes, NOTE)
    assert not [warning for warning in recwarn if "Dynamo" in str(warning.message)]


@pytest.mark.parametrize("options", [{}, {"fullgraph": True}, {"dynamic": True}, {"mode": "reduce-overhead"}])
def test_what_was_compiled_before_runs_eagerly_too(options):
    compiled = torch.compile(chain, **options)
    run = launch(lambda: compiled(torch.ones(5)).sum().item(), ranks=1)
    assert run.values[0] == pytest.approx(chain(torch.ones(5)).sum().item())
    assert [span.name for span in run.timeline.spans].count("aten.relu") == 1
    assert NOTE in run.notes


def test_a_module_compiled_in_place_and_a_decorator():
    def program():
        model = nn.Linear(3, 2)
        model.compile()
        double = torch.compile(backend="inductor")(lambda x: x * 2)
        return double(model(torch.ones(1, 3))).shape

    run = launch(program, ranks=1)
    assert run.values[0] == (1, 2) and run.notes == (NOTE,)


def test_a_run_without_compiled_functions_has_no_note():
    compiled = torch.compile(chain)  # noqa: F841 - made, and never called
    assert NOTE not in launch(lambda: chain(torch.ones(2)).sum().item(), ranks=1).notes


def test_an_unknown_backend_is_torchs_own_error():
    with pytest.raises(RankError, match="no_such_compiler"):
        launch(lambda: torch.compile(chain, backend="no_such_compiler")(torch.ones(2)).sum().item(), ranks=1)


@pytest.mark.parametrize("fails", [False, True])
def test_torch_compiles_again_when_the_run_has_ended(fails):
    before = torch.compile
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def program():
        torch.compile(chain, backend=count)(torch.ones(2))
        if fails:
            raise RuntimeError("on purpose")

    try:
        launch(program, ranks=1)
    except RankError:
        assert fails
    assert torch.compile is before and not graphs
    torch._dynamo.reset()
    torch.compile(chain, backend=count)(torch.ones(2))
    assert len(graphs) == 1
    torch._dynamo.reset()


def test_a_program_that_compiles_nothing_does_not_import_the_compiler():
    """In a fresh interpreter: the import takes seconds."""
    import subprocess

    code = (
        "import sys; from lablib import launch; import torch;"
        "launch(lambda: torch.ones(2).sum().item(), ranks=2); print('torch._dynamo' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout
    assert out.strip() == "False"
