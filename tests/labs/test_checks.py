"""Every check is proven, as `lab prove` does: its solution passes, its stub is "not attempted", wrong answers are told
apart, unusual right ones pass.

A check that lets a wrong answer through, or says of two mistakes the same, is worse than none.
"""

import pytest

from lablib.course.places import Lab
from lablib.course.proof import prove

# Labs run in notebooks, where a warning of a library is printed and no error.
pytestmark = pytest.mark.filterwarnings("default")


def test_the_check_is_proven(lab: Lab, exercise_name: str):
    for proof in prove(lab, exercise_name):
        assert not proof.findings, "\n\n".join(proof.findings)
