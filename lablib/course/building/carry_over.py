"""Merge a learner's copy of a lab into a newer version of that lab, cell by cell.

    the learner's cell                            in the new version
    an answer                                     in the exercise with the same check
    a cell of the lab, edited                     the edit, in the cell with the same id
    a cell of the lab, unedited                   as in the new version: reworded, moved or removed
    a cell of the lab, deleted                    deleted, unless it changed
    a cell that the learner added                 after the same cell as before, or before its check
    a cell without a place, such as an answer     at the end, under a heading; `lab run` does not run it
    to an exercise that was removed

A cell's id is the fingerprint of the text that was handed out (notebook.py). It separates an edited cell from an old
one without a third file. Where the start of an exercise has changed, a text cell above the answer shows the new start;
the next update removes that cell.
"""

import re
from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, field

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from lablib.course.building.notebook import fingerprint

_CHECK = re.compile(r"\bcheck\.(\w+)\(")
_KEPT = "kept"
_KEPT_HEADING = """## Kept from your earlier copy

The cells below are yours, and have no place in this version of the lab. `lab run` leaves them out."""
_NEW_START = """**This exercise has changed since you answered it.** It now begins like this; your answer is below.

```python
{source}
```"""


@dataclass
class Carried:
    """Result of a merge: names of answered exercises and of those with a new start; numbers of cells."""

    answers: list[str] = field(default_factory=list)
    changed_exercises: list[str] = field(default_factory=list)
    edited: int = 0
    added: int = 0
    unplaced: int = 0


def carry_over(old: NotebookNode, new: NotebookNode) -> tuple[NotebookNode, Carried]:
    """`new` with the learner's changes in `old`, and a list of them. Changes neither; keeps valid outputs."""
    carried = Carried()
    names, matches, handed_out = exercise_names(new), _matches(old, new), _handed_out(old)
    before, after, unplaced = _placed_by_neighbours(old, matches, handed_out)
    old_of = {position: index for index, position in matches.items()}
    cells: list[NotebookNode] = []
    for position, cell in enumerate(new.cells):
        cells += before[position]
        if position in old_of:
            was = old.cells[old_of[position]]
            if names.get(position) and is_edited(was) and was.id in handed_out and was.id != cell.id:
                note = new_markdown_cell(_NEW_START.format(source=cell.source))
                note["id"] = fingerprint(note)  # so it counts as unedited, and the next update removes it
                cells.append(note)
                carried.changed_exercises.append(names[position])
            cells.append(_carried_cell(was, cell, names.get(position), carried))
        elif cell.id not in handed_out:
            cells.append(deepcopy(cell))
        cells += after[position]
    carried.added = sum(map(len, (*before.values(), *after.values())))
    carried.unplaced = len(unplaced)
    if unplaced:
        heading = new_markdown_cell(_KEPT_HEADING)
        heading["id"] = fingerprint(heading)
        cells += [heading, *map(_kept, unplaced)]
    merged = deepcopy(new)
    merged.cells = _with_unique_ids(cells)
    return merged, carried


def exercise_names(notebook: NotebookNode) -> dict[int, str]:
    """Position of each exercise's cell, and name of its check. A learner's notebook need not be valid Python."""
    names: dict[int, str] = {}
    waiting: list[int] = []
    handed_out = _handed_out(notebook)
    for position, cell in enumerate(notebook.cells):
        if _tagged(cell, "exercise"):
            waiting.append(position)
        elif _tagged(cell, "check") and waiting:
            called = _CHECK.search(cell.source)
            if called:
                # A copied exercise cell has the same tag: the one that was handed out is the exercise.
                ours = [index for index in waiting if notebook.cells[index].id in handed_out]
                names[(ours or waiting)[-1]] = called[1]
            waiting = []
    return names


def _handed_out(notebook: NotebookNode) -> set[str]:
    """Ids of the cells that this notebook was handed out with."""
    return set(notebook.metadata.get("lablib", {}).get("cells", "").split())


def is_edited(cell: NotebookNode) -> bool:
    """Does the cell differ from the text that was handed out under its id?"""
    return cell.id.split("-")[0] != fingerprint(cell)


def _matches(old: NotebookNode, new: NotebookNode) -> dict[int, int]:
    """Match each cell of `old` to a cell of `new`: by check, then by id, then by text."""
    by_name = {name: position for position, name in exercise_names(new).items()}
    by_id = {cell.id: position for position, cell in enumerate(new.cells)}
    by_text = {(cell.cell_type, cell.source): position for position, cell in enumerate(new.cells)}
    named = exercise_names(old)
    matches: dict[int, int] = {}
    for find in (
        lambda index, cell: by_name.get(named.get(index, "")),
        lambda index, cell: by_id.get(cell.id),
        lambda index, cell: by_text.get((cell.cell_type, cell.source)),
    ):
        for index, cell in enumerate(old.cells):
            position = find(index, cell)
            if index not in matches and position is not None and position not in matches.values():
                matches[index] = position
    return matches


def _placed_by_neighbours(
    old: NotebookNode, matches: dict[int, int], handed_out: set[str]
) -> tuple[dict[int, list[NotebookNode]], dict[int, list[NotebookNode]], list[NotebookNode]]:
    """Place the learner's unmatched cells: before and after each cell of the new lab, and the rest."""
    before: dict[int, list[NotebookNode]] = defaultdict(list)
    after: dict[int, list[NotebookNode]] = defaultdict(list)
    unplaced: list[NotebookNode] = []
    lost = [i for i, cell in enumerate(old.cells) if i not in matches and is_edited(cell) and cell.source.strip()]
    added = [i for i in lost if old.cells[i].id not in handed_out and not _tagged(old.cells[i], "exercise", _KEPT)]
    for index in lost:
        cell = old.cells[index]
        others_above = [i for i in range(index) if i not in added]
        below = next((i for i in range(index, len(old.cells)) if i not in added), None)
        matched_above = [i for i in others_above if i in matches]
        if index not in added or not (matched_above or below in matches):
            unplaced.append(cell)
        elif below in matches and _tagged(old.cells[below], "check"):
            before[matches[below]].append(cell)
        elif others_above and others_above[-1] in matches:
            after[matches[others_above[-1]]].append(cell)
        elif below in matches:
            before[matches[below]].append(cell)
        else:
            after[matches[matched_above[-1]]].append(cell)
    return before, after, unplaced


def _carried_cell(old: NotebookNode, new: NotebookNode, name: str | None, carried: Carried) -> NotebookNode:
    """A cell of the new version, with the learner's edits, and with outputs that are still valid."""
    if old.source != new.source and not is_edited(old):
        return deepcopy(new)
    if old.source != new.source and name is not None:
        carried.answers.append(name)
    carried.edited += old.source != new.source and name is None
    cell = deepcopy(old)
    cell["id"] = new.id
    cell["metadata"] = deepcopy(new.metadata) | {name: value for name, value in cell.metadata.items() if name != "tags"}
    return cell


def _kept(cell: NotebookNode) -> NotebookNode:
    """A cell without a place, tagged so that papermill and nbval skip it and the next update finds it."""
    cell = deepcopy(cell)
    cell.metadata["tags"] = [_KEPT, "skip-execution", "nbval-skip"]
    return cell


def _with_unique_ids(cells: list[NotebookNode]) -> list[NotebookNode]:
    """The cells with unique ids; the first of two equal ids is kept."""
    seen: set[str] = set()
    for cell in cells:
        number, own = 1, cell.id
        while cell.id in seen:
            number += 1
            cell["id"] = f"{own[:50]}-{number}"
        seen.add(cell.id)
    return cells


def _tagged(cell: NotebookNode, *tags: str) -> bool:
    return any(tag in cell.metadata.get("tags", ()) for tag in tags)
