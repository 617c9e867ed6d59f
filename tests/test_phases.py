"""`lablib.phase` names spans on the simulator and on real processes alike."""

import pytest
import torch

from lablib import launch, phase


def labelled():
    x = torch.ones(8, 8)
    with phase("forward pass"):
        x = x + 1
        with phase("inner"):
            x = x @ x
        x = x * 2
    return x - 1


def names_by_phase(run):
    return [(s.name.removesuffix(".default"), s.phase) for s in run.timeline.select(0, "compute")][-4:]


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_the_innermost_phase_names_a_span_on_every_backend(backend):
    run = launch(labelled, ranks=1, backend=backend)
    found = names_by_phase(run)
    assert found == [
        ("aten.add", "forward pass"),
        ("aten.mm" if backend == "sim" else found[1][0], "inner"),
        ("aten.mul", "forward pass"),
        ("aten.sub", "compute"),
    ]
    assert "mm" in found[1][0] or "matmul" in found[1][0]
    compute = run.timeline.without("forward pass").select(0, "compute")
    assert [span.phase for span in compute if span.phase != "compute"] == []  # what is inside goes with it
    assert {span.outer_phases for span in run.timeline.select(0, phase="inner")} == {("forward pass",)}


@pytest.mark.parametrize("name", [None, 5, b"forward", ["forward"]])
def test_a_name_is_text(name):
    with pytest.raises(ValueError, match="the name must be text: got"), phase(name):
        pass


@pytest.mark.parametrize("name", ["", "a.b", "a::b", "#3"])
def test_names_that_libraries_use_are_refused(name):
    with pytest.raises(ValueError, match="a phase needs a name"), phase(name):
        pass


def test_a_phase_ends_with_its_block_also_after_an_error():
    def program():
        x = torch.ones(4)
        try:
            with phase("broken"):
                raise KeyError
        except KeyError:
            pass
        return x + 1

    (*_, last) = launch(program, ranks=1).timeline.select(0, "compute")
    assert last.phase == "compute"
