"""Any value of any type, into every public function, record and method: an answer, or one sentence of ours."""

import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lablib import CLUSTERS
from lablib.signature import hints_of
from tests.fuzz.anything import anything, like
from tests.fuzz.held import outcome
from tests.fuzz.samples import SAMPLES, methods, public

EXAMPLES = settings().max_examples // 5  # of each of a thousand calls: 8, and 20 new ones with --all
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

# Not called here, each for its reason. Keep it short.
ELSEWHERE: dict[str, str] = {
    "lablib.plan.": "tests/fuzz/test_planner.py",
    "lablib.pipeline.": "tests/fuzz/test_planner.py",
    "lablib.launch.": "starts ranks; tests/test_launch_checks.py tries any value for its arguments",
    "lablib.sim.": "called by `launch` alone",
    "lablib.real.": "called by `launch` alone",
    "lablib.script.": "starts ranks; tests/script/test_cli_sim.py tries its arguments",
    "lablib.phases.phase": "a marker inside programs; tests/test_phases.py tries its name",
    "lablib.parallel.": "called on a rank, where errors become RankErrors; its formulas are not tried yet",
    "lablib.compress.quantized_all_gather.": "called on a rank, where errors become RankErrors",
    "lablib.compress.quantized_reduce_scatter.": "the same",
    "lablib.compress.quantized_all_reduce.quantized_all_reduce": "the same",
    "lablib.compress.quantized_ring.quantized_ring_all_reduce": "the same",
    "lablib.compress.hierarchical_reduce_scatter.": "the same",
    "lablib.compress.secondary_shards.": "the same",
    "lablib.compress.zero_plus_plus.zero_plus_plus_options": "the same",
    "lablib.compress.stages.": "the same",
    "lablib.compress.comm_hook.": "the same",
    "lablib.compress.quantized.Quantizer": "a protocol",
    "lablib.cost.attention.": "inner loop of simulator and planner, on numbers and arrays, called with checked records",
    "lablib.cost.matmul.": "the same",
    "lablib.cost.memory.": "the same",
    "lablib.cost.regular_group.": "the same",
    "lablib.operators.op.": "the same; takes an operator as torch dispatches it",
    "lablib.hardware.topology.Topology": "a protocol",
    "lablib.process.settings.": "called by `launch` alone",
    "lablib.widgets.explore.": "calls functions of the user's, which may raise anything",
    "lablib.data.loading.loader_ranks.": "called on a rank, where errors become RankErrors",
    "lablib.optim.base.BatchedOptimizer": "a base class, whose subclasses check their settings",
    "lablib.signature.": "called by decorators, on functions and records of lablib",
    "lablib.hardware.device.Device.": "inner loop of simulator and planner, called with the names of dtypes",
    "lablib.kernels.jit.": "a decorator of kernels, whose source Triton reads",
    "lablib.studies.data_parallel_scaling.profile_step": "calls a function of the user's, which may raise anything",
    "lablib.validation.": "called with the tables that lablib contains",
    "lablib.train.metric_writers.": "opens files and ports, which a caller closes; tests/train/test_monitor.py",
    "lablib.train.monitor.MetricWriter": "a protocol",
    "lablib.train.steps.Step": "a protocol",
    "lablib.train.guards.Guard": "a protocol",
    "lablib.train.trainer.Loader": "a protocol",
    "lablib.course.checks.check.Check": "made by `checks_for`",
}


def targets() -> dict[str, Callable[..., Any]]:
    """Functions, records, and the methods of the samples."""
    found = {name: call for name, call in public().items() if not any(name.startswith(one) for one in ELSEWHERE)}
    for kind in SAMPLES:
        if kind.__module__.startswith("lablib"):
            found |= {f"{kind.__module__}.{kind.__qualname__}.{name}": call for name, call in methods(kind).items()}
    return {name: call for name, call in found.items() if not any(name.startswith(one) for one in ELSEWHERE)}


TARGETS = targets()


def test_every_reason_is_one_of_something_public():
    names = [
        *public(),
        *(f"{kind.__module__}.{kind.__qualname__}.{name}" for kind in SAMPLES for name in methods(kind)),
    ]
    assert not [start for start in ELSEWHERE if not any(name.startswith(start) for name in names)]


def arguments(call: Callable[..., Any]) -> st.SearchStrategy[tuple[list[Any], dict[str, Any]]]:
    """Most arguments of their own type, one or more of any; options are often left out."""
    hints = hints_of(inspect.unwrap(call))
    parameters = inspect.signature(call).parameters.values()
    own = {parameter: like(hints.get(parameter.name, Any), SAMPLES) for parameter in parameters}
    return st.composite(_draw)(own)


def _draw(draw: Any, own: Mapping[inspect.Parameter, st.SearchStrategy[Any]]) -> tuple[list[Any], dict[str, Any]]:
    positional, named = [], {}
    for parameter in own:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if parameter.default is not inspect.Parameter.empty and draw(st.booleans()):
            continue
        is_odd = draw(st.integers(0, 3)) == 0 and parameter.name != "self"
        value = draw(anything() if is_odd else own[parameter])
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append(value)
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            positional.append(value)
        else:
            named[parameter.name] = value
    return positional, named


def bound(name: str) -> Callable[..., Any]:
    """The function; a method with a sample as its object."""
    return TARGETS[name]


@pytest.fixture(autouse=True, scope="module")
def made() -> None:
    """The samples are made before anything is drawn: to make them imports much, and takes a while."""
    for make in SAMPLES.values():
        make()


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrations take no time: what is asked for is looked at, and the answer is a cluster of the catalogue."""
    module = importlib.import_module("lablib.calibration.calibrate")  # its package has a function of that name
    monkeypatch.setattr(module._Calibration, "run", lambda _: CLUSTERS["laptop"])


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_call_is_answered_or_explained(name: str, counts: Counter[str]):
    call = bound(name)
    owner = next((kind for kind in SAMPLES if name.startswith(f"{kind.__module__}.{kind.__qualname__}.")), None)
    is_method = owner is not None and list(inspect.signature(call).parameters)[:1] == ["self"]
    samples = like(owner, SAMPLES) if is_method else st.none()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=SLOW,
    )
    @given(arguments(call), samples)
    def every_call(drawn: tuple[list[Any], dict[str, Any]], sample: Any) -> None:
        positional, named = drawn
        if is_method:
            named["self"] = sample
        outcome(counts, call, *positional, **named)

    every_call()
