"""A learner's work in a newer version of a lab: nothing is ever lost, and everything stands where it belongs."""

from copy import deepcopy
from itertools import count

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lablib.course.building.carry_over import carry_over
from lablib.course.building.notebook import stamp

BASE = [
    ("text", "# Lab 90"),
    ("code", "ranks: int = 8"),
    ("text", "Write the mean."),
    ("exercise mean", "def mean(x):\n    raise NotImplementedError('your turn')"),
    ("check mean", "check.mean(mean)"),
    ("text", "Sizes."),
    ("code", "print(ranks)"),
    ("exercise size", "size = ...  # your turn"),
    ("check size", "check.size(size)"),
    ("text", "The end."),
]


def notebook(items: list[tuple[str, str]]) -> NotebookNode:
    """What is handed out for these cells, as `lab build` would."""
    cells = []
    for kind, source in items:
        tag = kind.split()[0]
        made = new_markdown_cell(source) if tag == "text" else new_code_cell(source)
        if tag in ("exercise", "check"):
            made.metadata["tags"] = [tag]
        cells.append(made)
    made = new_notebook(cells=cells)
    stamp(made)
    return made


def sources(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells]


def cell_of(notebook: NotebookNode, source: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.source == source)


def changed(*changes: tuple[str, str | None]) -> list[tuple[str, str]]:
    """BASE with texts reworded, or gone where the new text is None."""
    reworded = dict(changes)
    return [(kind, reworded.get(text, text) or "") for kind, text in BASE if reworded.get(text, text) is not None]


def test_an_answer_goes_into_the_exercise_of_the_same_check_and_its_new_start_stands_above():
    old = notebook(BASE)
    cell_of(old, BASE[3][1]).source = "def mean(x):\n    return x.mean()"
    new = notebook(changed((BASE[3][1], "def mean(x, dim):\n    raise NotImplementedError('your turn')")))
    merged, carried = carry_over(old, new)
    position = sources(merged).index("def mean(x):\n    return x.mean()")
    assert merged.cells[position].metadata.tags == ["exercise"] and merged.cells[position].id == new.cells[3].id
    assert "def mean(x, dim):" in merged.cells[position - 1].source
    assert sources(merged)[position + 1] == "check.mean(mean)"
    assert (carried.answers, carried.changed_exercises, carried.unplaced) == (["mean"], ["mean"], 0)
    again, _ = carry_over(merged, notebook(changed((BASE[0][1], "# Lab 91"), (BASE[3][1], new.cells[3].source))))
    assert "def mean(x):\n    return x.mean()" in sources(again) and len(again.cells) == len(BASE)


def test_a_stub_is_replaced_by_the_new_stub():
    new = notebook(changed((BASE[7][1], "size_bytes = ...  # your turn")))
    merged, carried = carry_over(notebook(BASE), new)
    assert sources(merged) == sources(new) and not carried.answers


def test_text_that_changed_is_new_and_an_edited_cell_keeps_its_edit():
    old = notebook(BASE)
    cell_of(old, "ranks: int = 8").source = "ranks: int = 4"
    merged, carried = carry_over(old, notebook(changed(("Sizes.", "Sizes, reworded."))))
    assert sources(merged) == [
        {"ranks: int = 8": "ranks: int = 4", "Sizes.": "Sizes, reworded."}.get(t, t) for _, t in BASE
    ]
    assert carried.edited == 1


def test_an_added_cell_stays_behind_its_neighbour_also_when_that_is_reworded():
    old = notebook(BASE)
    old.cells.insert(7, new_code_cell("ranks * 2"))
    old.cells.insert(6, new_markdown_cell("My notes on sizes."))
    merged, carried = carry_over(old, notebook(changed(("Sizes.", "Sizes, reworded."))))
    texts = sources(merged)
    assert texts[texts.index("print(ranks)") + 1] == "ranks * 2"
    assert texts[texts.index("Sizes, reworded.") + 1] == "My notes on sizes."
    assert carried.added == 2 and carried.unplaced == 0


def test_an_answer_in_a_cell_of_ones_own_stays_above_its_check():
    """Otherwise the stub below it would take its place when the lab is run."""
    old = notebook(BASE)
    old.cells[3] = new_code_cell("def mean(x):\n    return sum(x)")
    merged, _ = carry_over(old, notebook(changed((BASE[3][1], "def mean(x, dim): ..."))))
    texts = sources(merged)
    assert texts.index("def mean(x, dim): ...") < texts.index("def mean(x):\n    return sum(x)")
    assert texts[texts.index("def mean(x):\n    return sum(x)") + 1] == "check.mean(mean)"


def test_a_deleted_cell_stays_deleted():
    old = notebook(BASE)
    del old.cells[5]
    merged, _ = carry_over(old, notebook(changed(("The end.", "The very end."))))
    assert "Sizes." not in sources(merged) and "The very end." in sources(merged)


def test_an_answer_to_an_exercise_that_is_gone_is_kept_at_the_end_and_not_run():
    old = notebook(BASE)
    cell_of(old, BASE[7][1]).source = "size = 40"
    new = notebook(changed((BASE[7][1], None), (BASE[8][1], None)))
    merged, carried = carry_over(old, new)
    assert sources(merged)[:-2] == sources(new) and sources(merged)[-1] == "size = 40"
    assert "Kept from your earlier copy" in sources(merged)[-2] and carried.unplaced == 1
    assert {"skip-execution", "nbval-skip"} <= set(merged.cells[-1].metadata.tags)
    again, _ = carry_over(merged, notebook(changed((BASE[7][1], None), (BASE[8][1], None), ("Sizes.", "Sizes?"))))
    assert sources(again)[-2:] == sources(merged)[-2:] and sum("Kept from" in text for text in sources(again)) == 1


def test_outputs_stay_where_the_cell_is_the_same_and_go_where_it_is_not():
    old = notebook(BASE)
    for cell in old.cells:
        if cell.cell_type == "code":
            cell["outputs"] = [new_output("stream", text="8\n")]
    merged, _ = carry_over(old, notebook(changed(("print(ranks)", "print(2 * ranks)"))))
    assert cell_of(merged, "check.mean(mean)").outputs and not cell_of(merged, "print(2 * ranks)").outputs


def test_a_copied_exercise_is_one_answer_and_the_copy_stays_too():
    old = notebook(BASE)
    old.cells[3].source = "def mean(x):\n    return 1"
    copied = new_code_cell("def mean(x):\n    return 2", metadata={"tags": ["exercise"]})
    old.cells.insert(4, copied)
    merged, carried = carry_over(old, notebook(changed(("Sizes.", "Sizes?"))))
    assert carried.answers == ["mean"] and "def mean(x):\n    return 2" in sources(merged)
    assert merged.cells[3].source == "def mean(x):\n    return 1"


def test_a_notebook_whose_ids_are_lost_keeps_its_answers_and_has_nothing_twice():
    """Some editors write a file without ids, or with their own."""
    old = notebook(BASE)
    for number, cell in enumerate(old.cells):
        cell["id"] = f"x{number}"
    cell_of(old, BASE[3][1]).source = "def mean(x):\n    return x.mean()"
    cell_of(old, "ranks: int = 8").source = "ranks: int = 4"
    new = notebook(changed(("The end.", "The very end.")))
    merged, _ = carry_over(old, new)
    texts = sources(merged)
    assert texts[3] == "def mean(x):\n    return x.mean()" and "ranks: int = 4" in texts
    assert "ranks: int = 8" not in texts and len(set(texts)) == len(texts)


TEXTS = st.integers(0, 30).map(lambda number: f"text {number}")
NAMES = [f"e{number}" for number in range(6)]


@st.composite
def versions(draw: st.DrawFn) -> list[tuple[str, str]]:
    """The cells of a lab: text, code and exercises with their checks, in any order and wording."""
    items: list[tuple[str, str]] = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4)):
        items += [(draw(st.sampled_from(["text", "code"])), text) for text in draw(st.lists(TEXTS, max_size=3))]
        items += [(f"exercise {name}", f"def {name}(): {draw(TEXTS)}"), (f"check {name}", f"check.{name}({name})")]
    return items + [("text", text) for text in draw(st.lists(TEXTS, max_size=3))]


@st.composite
def worked_in(draw: st.DrawFn, items: list[tuple[str, str]]) -> tuple[NotebookNode, list[str]]:
    """The notebook of these cells after a learner had it; and every text that the learner wrote."""
    old, written, number = notebook(items), [], count()

    def write() -> str:
        written.append(f"mine {next(number)}")
        return written[-1]

    for _ in range(draw(st.integers(0, 8))):
        where = draw(st.integers(0, len(old.cells)))
        action = draw(st.sampled_from(["add", "add", "edit", "edit", "delete", "move", "copy"]))
        if action == "add" or where == len(old.cells):
            kind = draw(st.sampled_from([new_code_cell, new_markdown_cell]))
            old.cells.insert(where, kind(write()))
        elif action == "edit":
            if old.cells[where].source in written:
                written.remove(old.cells[where].source)
            old.cells[where].source = write() + draw(st.sampled_from(["", "\n", " = 'ä'", "\ncheck.e1("]))
            written[-1] = old.cells[where].source
        elif action == "copy":
            copied = deepcopy(old.cells[where])
            copied.update(id=f"copy-{draw(st.integers(0, 99))}", source=write())
            old.cells.insert(draw(st.integers(0, len(old.cells))), copied)
        else:
            cell = old.cells.pop(where)
            if action == "move":
                old.cells.insert(draw(st.integers(0, len(old.cells))), cell)
            elif cell.source in written:
                written.remove(cell.source)
    return old, written


@given(st.data(), versions(), versions())
def test_nothing_a_learner_wrote_is_lost_or_there_twice(data: st.DataObject, before: list, after: list):
    old, written = data.draw(worked_in(before))
    new = notebook(after)
    was = deepcopy(old), deepcopy(new)
    merged, _ = carry_over(old, new)
    nbformat.validate(merged)
    assert (old, new) == was
    for _ in range(2):  # the second update has the first one's notes and headings to deal with
        texts = sources(merged)
        assert [texts.count(text) for text in written] == [1] * len(written), (written, texts)
        assert len({cell.id for cell in merged.cells}) == len(merged.cells)
        assert merged.metadata.lablib == new.metadata.lablib
        merged, _ = carry_over(merged, new)


@given(st.data(), versions(), versions())
def test_who_wrote_nothing_gets_exactly_the_new_version(data: st.DataObject, before: list, after: list):
    old, new = notebook(before), notebook(after)
    for cell in old.cells:  # run, but not edited
        if cell.cell_type == "code":
            cell["execution_count"] = data.draw(st.integers(1, 9))
    merged, carried = carry_over(old, new)
    assert sources(merged) == sources(new) and [cell.id for cell in merged.cells] == [cell.id for cell in new.cells]
    assert not (carried.answers or carried.edited or carried.added or carried.unplaced)


@given(st.data(), versions())
def test_an_update_to_the_same_version_changes_nothing(data: st.DataObject, items: list):
    old, _ = data.draw(
        worked_in(items).filter(lambda drawn: len({cell.id for cell in drawn[0].cells}) == len(drawn[0].cells))
    )
    new = notebook(items)
    merged, carried = carry_over(old, new)
    assert carried.changed_exercises == []
    again, _ = carry_over(merged, new)
    assert sources(again) == sources(merged)


@pytest.mark.parametrize("tags", [["exercise"], ["check"], []])
def test_what_is_no_python_is_carried_over_too(tags: list[str]):
    old = notebook(BASE)
    old.cells.insert(4, new_code_cell("%%time\nthis is (no python", metadata={"tags": tags}))
    merged, _ = carry_over(old, notebook(changed(("Sizes.", "Sizes?"))))
    assert "%%time\nthis is (no python" in sources(merged)
