"""`print_error` prints errors as a notebook's reader can use them, and `print_text` other long text."""

import pytest

from lablib.course import print_error, print_text
from lablib.course.checks.printing import COLUMNS

HUNG = """the program was still running after timeout_s=2
rank 0 was at
  File "/tmp/ipykernel_7/1654090823.py", line 4, in swap
    dist.recv(inbox, src=other)
  File "/home/me/.venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
    return func(*args, **kwargs)
rank 1 was at
  File "program.py", line 9, in main
    dist.barrier()"""


def test_frames_of_libraries_are_left_out_and_cells_are_called_cells(capsys: pytest.CaptureFixture[str]):
    print_error(RuntimeError(HUNG))
    assert capsys.readouterr().out.splitlines() == [
        "the program was still running after timeout_s=2",
        "rank 0 was at",
        "  cell line 4, in swap",
        "    dist.recv(inbox, src=other)",
        "rank 1 was at",
        '  File "program.py", line 9, in main',
        "    dist.barrier()",
    ]


def test_long_lines_are_broken_between_words_and_keep_every_word(capsys: pytest.CaptureFixture[str]):
    text = "  rank 0 waits in all_reduce #0 of group world; " + "ranks 1, 2, 3 are not there  " * 6
    print_error(RuntimeError(text))
    printed = capsys.readouterr().out
    assert all(len(line) <= COLUMNS for line in printed.splitlines())
    assert printed.split() == text.split()
    assert printed.splitlines()[1].startswith("      ")


def test_an_empty_message_is_an_empty_line(capsys: pytest.CaptureFixture[str]):
    print_error(RuntimeError(""))
    assert capsys.readouterr().out == "\n"


def test_a_text_that_is_no_error_keeps_all_its_lines_and_words(capsys: pytest.CaptureFixture[str]):
    text = (
        "rank 0 held 1 MB: " + "half of it is activation; " * 9 + '\n  File "/site-packages/torch/x.py", line 4, in f'
    )
    print_text(text)
    printed = capsys.readouterr().out
    assert all(len(line) <= COLUMNS for line in printed.splitlines())
    assert printed.split() == text.split() and printed.splitlines()[-1] == text.splitlines()[-1]
