"""One trial of an answer: run the check and turn any error of the learner's code into a result."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from typing import Any

from lablib import errors
from lablib.course.checks import learner_code
from lablib.course.checks.exercise import Exercise
from lablib.course.checks.expect import Expect, NotAttempted, RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.result import Result
from lablib.course.checks.time_limit import CPU_LIMIT_S, TimeIsUp, time_limit

_MAX_LINES = 20
_INSIDE = "inside the library: no line of yours was running"
_RULES = {  # warning of a launch -> the broken rule, and the expected behaviour
    errors.UnwaitedWarning: ("every communication is waited for", "a wait() for each asynchronous call"),
    errors.WriteInFlightWarning: (
        "nothing is written to before the wait() of its communication",
        "the wait() first, or a copy",
    ),
    errors.ReadInFlightWarning: (
        "nothing is read before the wait() of the communication that fills it",
        "the wait() first, or a buffer of its own",
    ),
    errors.OverlapWarning: (
        "an output overlaps its input only in its own place",
        "a tensor of its own, or this rank's own piece",
    ),
    errors.NotOnNcclWarning: (  # where a check launches with like="nccl"
        "it ends on GPUs, with messages of any size",
        "both calls in one dist.batch_isend_irecv",
    ),
}
_NO_HANDLE = "'NoneType' object has no attribute 'wait'"
_TOO_LONG = "your code comes to its end"
_REASONS = {"cpu": "", "busy": "the machine is busy: ", "waiting": "your code is waiting: "}
_NEXT = {
    "busy": "other programs use this machine; end them, or check again later. Your answer was not judged.",
    "waiting": "look for a sleep, a lock, input() or a communication that never ends.",
}


def run_check(
    lab: str,
    exercise: Exercise,
    *answer: Any,
    seed: int | None = None,
    cpu_limit_s: float = CPU_LIMIT_S,
    with_input: bool = False,
    **options: Any,
) -> Result:
    """Try one answer: `answer` and `options` are the arguments of the check in the notebook.

    Records nothing, and raises no exception of the learner's code. `cpu_limit_s` is time_limit.py's. With
    `with_input`, the check of a wrong answer runs again, for the input that failed (last_call.py).
    """
    result = Result(lab, exercise.name, exercise.title, "not attempted", next_step="solve the exercise above.")
    if not answer or answer[0] is None or answer[0] is Ellipsis or learner_code.is_empty(answer[0]):
        return result
    expect = Expect(seed, answers=answer)
    try:
        with time_limit(cpu_limit_s), _torch_as_before(), _no_luck():
            try:
                exercise.run(expect, *answer, **options)
            except SystemExit as end:
                raise learner_code.exited(end) from None
    except NotAttempted:
        return result
    except Exception as error:
        check_file = exercise.run.__code__.co_filename
        if learner_code.is_stub(error, check_file):
            return replace(result, next_step=learner_code.unfinished(error, check_file) or result.next_step)
        if any(isinstance(e, NotAttempted) for e in learner_code.chain(error)):
            return result
        rule, saw, expected, trace = _explain(error, check_file)
        result = replace(result, status="failed", rule=rule, saw=saw, expected=expected, trace=trace)
        next_step = "correct it, run its cell, and check again."
        if isinstance(error, TimeIsUp) and error.reason != "cpu":
            next_step = _NEXT[error.reason]
            result = replace(result, status="not checked") if error.reason == "busy" else result
        result = replace(result, next_step=next_step, seed=expect.seed)
        if with_input and rule != _TOO_LONG:
            call = _last_call(exercise, answer, options, expect.seed, result.message)
            result = replace(result, call=call)
    else:
        result = replace(result, status="passed", next_step="")
    measured = tuple(dict.fromkeys(expect.measured))  # a rule that holds on every rank is listed once
    lines = (
        expect.printed[-1].rstrip().splitlines() if expect.printed else []
    )  # earlier runs print it for smaller sizes
    more = [f"... and {len(lines) - _MAX_LINES} lines more"] if len(lines) > _MAX_LINES else []
    return replace(result, measured=measured, printed="\n".join(lines[:_MAX_LINES] + more))


def _last_call(exercise: Exercise, answer: Sequence[Any], options: dict[str, Any], seed: int | None, said: str) -> str:
    """The answer's last call before its check failed, from a second run with the same inputs."""
    if not callable(answer[0]):
        return ""
    from lablib.course.checks.last_call import LastCalls  # it needs torch

    calls = LastCalls(answer[0], exercise.name)
    with warnings.catch_warnings(), suppress(Exception, SystemExit), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        with time_limit(), _torch_as_before(), calls:
            exercise.run(Expect(seed, answers=answer), *answer, **options)
    return calls.text(said)


@contextmanager
def _torch_as_before() -> Iterator[None]:
    """Compute with one thread, and restore torch's threads and gradient mode, which an answer may switch off.

    Waiting threads use CPU too, on many cores more than the answer's limit.
    """
    import torch  # here: `lab --help` needs no torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _no_luck() -> Iterator[None]:
    """Break a rule when a launch inside drops the handle of a communication, uses a tensor in flight, lets an output
    overlap its input, or fills NCCL's buffers: the result is right only by chance.

    A rule that such values break is the consequence; this rule is the cause.
    """
    broken: RuleBroken | None = None
    with warnings.catch_warnings(record=True) as caught:
        for category in _RULES:
            warnings.simplefilter("always", category)
        try:
            yield
        except RuleBroken as error:
            broken = error
    for warning in caught:
        if warning.category in _RULES:
            rule, expected = _RULES[warning.category]
            raise RuleBroken(rule, str(warning.message), expected) from broken
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if broken is not None:
        raise broken


def _explain(error: Exception, check_file: str) -> tuple[str, str, str, str]:
    """An exception of a check as rule, saw, expected and place in the learner's code."""
    broken = next((e for e in learner_code.chain(error) if isinstance(e, RuleBroken)), None)
    if broken is not None:
        return broken.rule, broken.saw, broken.expected, ""
    if isinstance(error, TimeIsUp):
        saw = f"{_REASONS[error.reason]}{error}" + (f": {error.where}" if error.where else "")
        return _TOO_LONG, saw, "an end", learner_code.learner_lines(error.stack, check_file)
    if isinstance(error, errors.LaunchTimeoutError):
        return _TOO_LONG, str(error), "an end of every rank", ""
    cause = learner_code.program_error(error)
    name = type(cause).__name__
    where = f" on rank {error.rank}" if isinstance(error, errors.RankError) else ""
    trace = learner_code.learner_frames(cause, check_file) or (_INSIDE if isinstance(error, errors.RankError) else "")
    if learner_code.is_left_stub(cause, check_file):
        return "no line of the stub is left", f"a {name}{where}", "your code in every branch", trace
    if isinstance(error, errors.LaunchError) and cause is error:  # a diagnosis, which names ranks and lines
        return "every rank runs to its end", f"{name}: {error}", "no deadlock, mismatch or lost worker", ""
    if trace:
        return "your code runs without an exception", f"{name}{where}: {_said(cause)}", "no exception", trace
    rule = "your code returns what the exercise asks for"
    return rule, f"{name} when the check used it: {_said(cause)}", "see the exercise's text and docstring", ""


def _said(error: BaseException) -> str:
    """The message of an exception, shortened, with terms explained that a learner may not know."""
    if isinstance(error, KeyError) and error.args:
        return f"the key {short_repr(error.args[0])} is not there"
    more = " (without async_op=True a call waits itself, and returns None)"
    return f"{error}{more if str(error) == _NO_HANDLE else ''}"
