"""A made-up class of 30 learners: one has not begun, one has passed all exercises, one has a long name."""

import random
from datetime import datetime, timedelta

from lablib.course.progress import Entry, Labs

NOW = datetime.fromisoformat("2026-03-06T16:00:00+01:00")
NAMES = (
    "ada bea cem dia eli fay gus hana ivo jun kai lea max nia oli pia quin rosa sam tua uma vic wen xia yun zoe "
    "amir bo chen maximilian-alexander-von-und-zu-lichtenstein"
).split()


def made_up_class(exercises: list[tuple[str, str]]) -> dict[str, Labs]:
    """Learner k has passed about 2 k exercises; every fourth fails at the next one, every fifth has been away."""
    dice, learners = random.Random(0), {}
    for number, name in enumerate(NAMES):
        labs: Labs = {}
        done = len(exercises) if number == 28 else min(2 * number, len(exercises) - 1)
        last = NOW - timedelta(days=9 + number if number % 5 == 4 else 0, hours=number)
        for at, (lab, exercise) in enumerate(exercises[:done]):
            when = (last - timedelta(hours=2 * (done - at))).isoformat(timespec="seconds")
            labs.setdefault(lab, {})[exercise] = Entry(dice.randint(1, 5), dice.randint(0, 2), "passed", when, when)
        if number % 4 == 1 and done < len(exercises):
            lab, exercise = exercises[done]
            entry = Entry(2 + number // 2, number % 3, "failed", "", last.isoformat(timespec="seconds"))
            labs.setdefault(lab, {})[exercise] = entry
        learners[name] = labs
    return learners
