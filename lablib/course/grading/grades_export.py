"""`nbgrader export` with "not graded" instead of 0 for a submission that autograde could not grade."""

from typing import Any

from nbgrader.plugins import CsvExportPlugin  # pyright: ignore[reportMissingImports]

from lablib.text.files import read_text, write_text


class GradesExport(CsvExportPlugin):
    """nbgrader's CSV file, corrected for submissions without a result; configured by grading/settings.py."""

    def export(self, gradebook: Any) -> None:
        super().export(gradebook)
        path = self.to or "grades.csv"
        heading, *rows = read_text(path).splitlines()
        ungraded = {
            (assignment.name, submission.student.id)
            for assignment in gradebook.assignments
            for submission in assignment.submissions
            if any(
                grade.auto_score is None and grade.manual_score is None and not grade.needs_manual_grade
                for notebook in submission.notebooks
                for grade in notebook.grades
            )
        }
        for number, row in enumerate(rows):
            assignment, _, _, student, *_ = row.split(",")
            if (assignment, student) in ungraded:
                *about, _, penalty, _, maximum = row.split(",")
                rows[number] = ",".join([*about, "not graded", penalty, "not graded", maximum])
        write_text(path, "\n".join([heading, *rows, ""]))
        if ungraded:
            self.log.warning("Not graded: %s", ", ".join(" of ".join(one[::-1]) for one in sorted(ungraded)))
