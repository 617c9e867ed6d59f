"""Whatever a rank raises ends the run with an error that names the rank, also what cannot be put into words.

The classes are made up by hypothesis: each asks for trouble in one or several of the places where an exception is asked
what it is. The property: a `RankError` of the rank that raised, and a next launch that works.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lablib import RankError, launch
from lablib.errors import unknown_name
from lablib.text.messages import safe_repr, safe_str, traceback_text, type_name

pytestmark = [pytest.mark.usefixtures("everything_is_given_back"), pytest.mark.timeout(60)]


class OtherBase(BaseException):
    """Neither an Exception nor any of Python's own."""


def raises(error: type[BaseException]) -> Callable[..., Any]:
    def method(*args: Any) -> Any:
        raise error("from inside")

    return method


def recurses(*args: Any) -> Any:
    return recurses(*args)


TROUBLES: dict[str, Callable[..., Any]] = {
    "raises ValueError": raises(ValueError),
    "raises OtherBase": raises(OtherBase),
    "raises KeyboardInterrupt": raises(KeyboardInterrupt),
    "exits": raises(SystemExit),
    "raises RecursionError": recurses,
    "is no text": lambda *args: 7,
    "is None": lambda *args: None,
    "is huge": lambda *args: "x" * 3_000_000,
    "has half a surrogate": lambda *args: "\ud800",
    "is fine": lambda *args: "a message",
}
BASES = [Exception, BaseException, KeyboardInterrupt, SystemExit, GeneratorExit, SyntaxError, OSError, AttributeError]
PLACES = ["__str__", "__repr__", "__dir__", "__getattribute__", "__eq__", "__bool__", "__hash__"]
ATTRIBUTES = ["__notes__", "lineno", "text", "offset", "filename", "name", "obj", "msg"]
ODD_VALUES = [7, "text", -3.5, [1, object()], {"a": 1}]


@st.composite
def exceptions(draw: st.DrawFn) -> BaseException:
    """One exception of a class nobody chose, with causes that may go round in a circle."""
    base = draw(st.sampled_from(BASES))
    places = draw(st.dictionaries(st.sampled_from(PLACES), st.sampled_from(sorted(TROUBLES)), max_size=3))
    made = type("Odd", (base,), {place: TROUBLES[trouble] for place, trouble in places.items()})
    error = base.__new__(made)
    for name, value in draw(st.dictionaries(st.sampled_from(ATTRIBUTES), st.sampled_from(ODD_VALUES))).items():
        BaseException.__setattr__(error, name, value)
    shape = draw(st.sampled_from(["alone", "its own cause", "a circle", "a group"]))
    if shape == "its own cause":
        BaseException.__setattr__(error, "__cause__", error)
    if shape == "a circle":
        other = made.__new__(made)
        BaseException.__setattr__(error, "__cause__", other)
        BaseException.__setattr__(other, "__context__", error)
    return BaseExceptionGroup("several", [error, ValueError("another")]) if shape == "a group" else error


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(error=exceptions(), rank=st.integers(0, 2), is_handled=st.booleans())
def test_whatever_a_rank_raises_is_an_error_of_that_rank(error: BaseException, rank: int, is_handled: bool):
    def program() -> None:
        if is_handled:
            try:
                raise error
            except BaseException:
                dist.all_reduce(torch.ones(1))
        if dist.get_rank() == rank:
            raise error
        dist.barrier()

    if type(error).__mro__[1] is SystemExit and error.code is None:  # pyright: ignore[reportAttributeAccessIssue]
        return  # `sys.exit()` is the normal end of a script
    with pytest.raises(RankError) as caught:
        launch(program, ranks=3)
    assert caught.value.rank == rank
    assert str(caught.value).startswith(f"rank {rank} raised {type(error).__name__}")
    assert caught.value.__cause__ is error
    assert len(str(caught.value)) < 500_000


def test_the_lines_of_the_program_are_told_even_of_an_exception_without_words():
    class Mute(Exception):
        __str__ = __repr__ = raises(OtherBase)
        __cause__ = property(raises(OtherBase))  # pyright: ignore[reportAssignmentType]

    def program() -> None:
        raise Mute

    with pytest.raises(RankError, match="<a Mute whose __str__ raised OtherBase>") as caught:
        launch(program, ranks=2)
    assert "raise Mute" in caught.value.rank_traceback


def test_notes_and_causes_are_told():
    def program() -> None:
        try:
            raise KeyError("the first")
        except KeyError as error:
            later = ValueError("the second")
            later.add_note("a note")
            raise later from error

    with pytest.raises(RankError, match="rank 0 raised ValueError: the second") as caught:
        launch(program, ranks=2)
    text = caught.value.rank_traceback
    assert text.index("KeyError: 'the first'") < text.index("direct cause") < text.index("a note")
    assert "simulation.py" not in text


def test_a_rank_that_ends_itself_as_the_scheduler_would_is_no_success():
    """A program can reach the exception that unwinds ranks; raised by itself it ends the run all the same."""
    from lablib.sim.ranks.ending import RunEnded

    def program() -> None:
        if dist.get_rank() == 1:
            raise RunEnded

    with pytest.raises(RankError, match="rank 1 raised RunEnded"):
        launch(program, ranks=2)


def test_an_exit_with_an_object_that_resists_comparison_is_a_failure():
    class Code:
        __eq__ = __bool__ = __repr__ = __str__ = raises(OtherBase)  # pyright: ignore[reportAssignmentType]
        __hash__ = None  # pyright: ignore[reportAssignmentType]

    class ComparesAsNothing:
        def __eq__(self, other: object) -> bool:
            return True

    for code in (Code(), ComparesAsNothing(), "", 0.0, torch.zeros(2)):
        with pytest.raises(RankError, match="rank 0 raised SystemExit"):
            launch(lambda code=code: (_ for _ in ()).throw(SystemExit(code)), ranks=2)


def test_what_breaks_while_a_rank_leaves_ends_the_run(monkeypatch: pytest.MonkeyPatch):
    """A fault of the launcher's own, after the program returned: no rank may wait for that thread for ever."""
    from lablib.sim.ranks.rank import Rank

    def broken(self: Rank) -> None:
        raise OtherBase("while leaving")

    with monkeypatch.context() as patch:
        patch.setattr(Rank, "leave", broken)
        with pytest.raises(RankError, match="OtherBase: while leaving"):
            launch(dist.get_rank, ranks=2, timeout_s=20)


@pytest.mark.parametrize("trouble", sorted(set(TROUBLES) - {"is fine"}))
def test_any_object_has_a_text(trouble: str):
    class Meta(type):
        __name__ = property(raises(OtherBase))  # pyright: ignore[reportAssignmentType]

    odd = Meta("Odd", (Exception,), {"__str__": TROUBLES[trouble], "__repr__": TROUBLES[trouble]})()
    assert type_name(odd) == "Odd"
    assert 0 < len(safe_repr(odd)) < 700
    assert 0 < len(safe_str(odd)) < 200_000
    assert "Odd" in traceback_text(odd)
    assert "unknown thing" in str(unknown_name("thing", odd, ["one", "two"]))


def test_a_text_that_is_well_behaved_is_left_alone():
    assert (safe_str("a"), safe_repr("a"), type_name("a")) == ("a", "'a'", "str")


TYPES = (torch.float32, torch.float64, torch.bool, torch.int64, torch.bfloat16)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(types=st.lists(st.sampled_from(TYPES), min_size=2, max_size=2, unique=True), call=st.sampled_from(["all", "to"]))
def test_tensors_of_two_types_in_one_call_are_refused_in_a_sentence(types: list[torch.dtype], call: str):
    def program() -> None:
        tensors, x = [torch.zeros(1, dtype=types[0]) for _ in range(2)], torch.ones(1, dtype=types[1])
        if call == "all":
            dist.all_gather(tensors, x)
        else:
            dist.gather(x, tensors if dist.get_rank() == 0 else None, dst=0)

    own = dist.distributed_c10d._ensure_all_tensors_same_dtype
    with pytest.raises(RankError) as raised:
        launch(program, ranks=2)
    assert isinstance(raised.value.__cause__, ValueError)
    assert "the tensors of one call must have one type: got " in str(raised.value)
    assert all(str(one).removeprefix("torch.") in str(raised.value) for one in types)
    assert dist.distributed_c10d._ensure_all_tensors_same_dtype is own
