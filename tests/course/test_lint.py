"""The rules of a master: the example keeps them all, and each broken rule is named with file and line."""

from collections.abc import Callable

import pytest

from lablib.course.building.lint import declared_checks, lint
from lablib.course.building.master import Prerequisites, read_master
from lablib.course.errors import CourseFailure
from lablib.course.places import Lab


def findings(lab: Lab, change: Callable[[str], str]) -> list[str]:
    lab.master.write_text(change(lab.master.read_text()))
    return [str(finding) for finding in lint(read_master(lab))]


def swap(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text, old
        return text.replace(old, new, 1)

    return change


def test_the_example_keeps_every_rule(lab: Lab):
    master = read_master(lab)
    assert lint(master) == []
    assert (master.title, master.question) == ("An example", "What does a master look like?")
    assert master.prerequisites == Prerequisites(("08",), ("02", "03"))
    assert [check.check_name for _, check in master.exercises] == ["mean", "size"]
    assert [check.points for _, check in master.exercises] == [2.0, 1.0]


PARAMETERS = '# %% tags=["parameters"]'
MOVED = "# %%\n1\n\n# %%\n2\n\n" + PARAMETERS


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (swap("# # Lab 90: An example", "# An example"), 1, "`# Lab 90: Title`"),
        (swap("**Prerequisites.** Lab 08", "Lab 08"), 1, "add `**Prerequisites.** Lab 00.`"),
        (swap("labs 02 and 03", "labs 90 and 91"), 1, "prerequisites must be labs before 90: got 90, 91"),
        (swap("and 03.", "and 03. **Time.** 9 minutes."), 1, "the sum of the sections: got 9 and 7.5"),
        (swap("Lab 90:", "Lab 91:"), 1, "must have the file's number, 90"),
        (swap("**Question.**", "A question:"), 1, "must ask the lab's question"),
        (swap(PARAMETERS, "# %%"), 1, "exactly one cell must be tagged `parameters`: got 0"),
        (swap(PARAMETERS, MOVED), 15, "must be the first or second code cell"),
        (swap("quick: bool = True", "fast: bool = True"), 9, "must include interactive, quick: missing quick"),
        (swap("ranks: int = 4", "ranks = 4"), 9, "name: type = literal"),
        (swap('checks_for("90")', 'checks_for("91")'), 44, '`check = checks_for("90")`'),
        (
            lambda text: text.replace('check = checks_for("90")', "check = None").replace(
                "check.mean(mean)", 'check = checks_for("90")\ncheck.mean(mean)'
            ),
            44,
            "a cell before the first check must say",
        ),
        (swap('# %% tags=["check"]\ncheck.size(size_bytes)\n', ""), 50, "an exercise must be followed by its check"),
        (swap('# %% tags=["check"] points=2\ncheck.mean(mean)\n', ""), 33, "an exercise must be followed by its check"),
        (swap('# %% tags=["exercise"]\ndef mean', "# %%\ndef mean"), 44, "a check must come after its own exercise"),
        (swap('# %% tags=["exercise"]\ndef mean', "# %%\ndef mean"), 33, "learners would see it"),
        (swap("    ### BEGIN SOLUTION\n", ""), 33, "without BEGIN SOLUTION"),
        (swap("check.mean(mean)", "result = check.mean(mean)"), 44, "must end in `check.name(answer)`"),
        (swap("check.mean(mean)", "check.maen(mean)"), 44, "check 'maen' is not in checks.py: did you mean 'mean'?"),
        (swap("check.size(size_bytes)", "check.mean(size_bytes)"), 59, "'mean' is used again"),
        (swap("try_out(mean, [1.0, 2.0])", "mean([1.0])"), 44, "add a cell with `try_out(...)`"),
        (swap(" minutes=4", ""), 27, "must state its time"),
        (swap("minutes=4", "minutes=2"), 27, "takes 3 minutes or more, by its words, code and solutions: got 2;"),
        (lambda text: text + "\n# %% [markdown] minutes=1\n# ## End\n# " + "word " * 300, 65, "takes 2 minutes"),
        (swap("minutes=4", "minutes=58"), 1, "a lab is one hour: its sections take 61.5 minutes"),
        (
            swap("check.size(size_bytes)", "show_source(size_bytes)\ncheck.size(size_bytes)"),
            59,
            "move `show_source(...)` there",
        ),
        (
            swap("check.size(size_bytes)", "run.timeline.figure()\ncheck.size(size_bytes)"),
            59,
            "move `figure(...)` there",
        ),
        (swap(", scale {scale}", ""), 9, "every parameter must be used by some cell: scale is not"),
        (swap('"instructor"]\n', '"instructor"]\n# Four is 2\n# + 2.\n#\n'), 24, "would begin a list: got '+ 2.'"),
        (swap("def mean", f"# {'wide' * 24}\ndef mean"), 33, "at most 96 characters wide: got 98, "),
        (
            swap('"instructor"]\n', '"instructor"]\n# ## Optional\n\n# %% tags=["a"]\nuse = 1\n'),
            24,
            "must state its time",
        ),
    ],
)
def test_a_broken_rule_is_named_with_file_and_line(lab: Lab, change: Callable[[str], str], line: int, message: str):
    found = findings(lab, change)
    assert any(text.startswith(f"{lab.master}:{line}: ") and message in text for text in found), found


def test_checks_may_come_from_the_module_of_the_lab_and_have_its_number(lab: Lab):
    assert findings(lab, swap('checks_for("90")', 'lab90.checks_for("90")')) == []
    assert any("checks_for" in text for text in findings(lab, swap('checks_for("90")', 'checks_for("09")')))


def test_a_lab_without_a_file_of_checks_says_which_one_is_missing(lab: Lab):
    lab.checks.unlink()
    assert any(f"has no file: expected {lab.checks}" in text for text in findings(lab, lambda text: text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# %%\nx = 1\ndef f(:\n", ":3: invalid syntax"),
        ("x = 1\n# %%\ny = 2\n", ":1: every cell of a master must start with `# %%`"),
    ],
)
def test_a_master_that_cannot_be_read_is_refused_with_its_line(lab: Lab, text: str, message: str):
    lab.master.write_text(text)
    with pytest.raises(CourseFailure) as raised:
        read_master(lab)
    assert f"{lab.master}{message}" in str(raised.value)


def test_a_master_in_another_encoding_is_refused(lab: Lab):
    lab.master.write_bytes("# %%\nx = 'é'\n".encode("latin-1"))
    with pytest.raises(CourseFailure, match="must be a UTF-8 text file"):
        read_master(lab)


def test_checks_are_found_without_running_their_file():
    source = "import nothing_that_exists\n@exercise('A')\ndef a(expect, x): ...\ndef helper(): ...\n"
    assert declared_checks(source) == ["a"]


def test_what_a_reader_may_skip_is_used_nowhere_else(lab: Lab):
    def further(text: str) -> str:
        text = text.replace("# %% [markdown] minutes=3.5", '# %% [markdown] tags=["further"] minutes=99')
        return text + "\n# %% [markdown] minutes=1\n# ## End\n\n# %%\nprint(size_bytes)\n"

    [finding] = findings(lab, further)  # and 99 minutes do not count
    assert "this cell uses 'size_bytes' of line 50" in finding
    [again] = findings(lab, swap("minutes=1\n# ## End", 'tags=["further"] minutes=1\n# ## Further: end'))
    assert again == finding
    assert not findings(lab, swap("print(size_bytes)", "size_bytes = 1\nprint(size_bytes)"))
