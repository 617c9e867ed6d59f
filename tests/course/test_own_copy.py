"""Ranks get a function each, with variables of their own."""

import threading

from lablib.course.own_copy import own_copy

SHELF = """
shelf, calls = {}, [0]

def put(key, value, seen=[]):
    seen.append(key)
    calls[0] += 1
    shelf[key] = value
    return len(shelf), len(seen), calls[0]
"""


def notebook() -> dict:
    cells: dict = {"__name__": "a_notebook"}
    exec(SHELF, cells)
    return cells


def test_copies_share_no_variables_and_keep_their_own():
    cells = notebook()
    first, second = own_copy(cells["put"]), own_copy(cells["put"])
    assert first("a", 1) == (1, 1, 1)
    assert first("b", 1) == (2, 2, 2)  # its own are kept from call to call
    assert second("c", 1) == (1, 1, 1)
    assert cells["shelf"] == {}


def test_what_the_notebook_had_is_there():
    cells = notebook()
    cells["shelf"]["before"] = 1
    assert own_copy(cells["put"])("a", 1)[0] == 2


def test_what_cannot_be_pickled_is_taken_as_it_is():
    lock = threading.Lock()

    def guarded() -> bool:
        return lock.locked()

    assert own_copy(guarded) is guarded
    assert own_copy(len) is len
