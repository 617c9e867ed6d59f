"""The recorded comparison of predicted and measured times in a lab's folder, from a quiet machine."""

from lablib.course.places import find_lab, find_labs_folder
from lablib.record.comparison import RecordedReconciliation
from lablib.signature import checked


@checked
def recorded_comparison(lab: str, name: str = "recorded") -> RecordedReconciliation:
    """The comparison that `comparison.save(...)` wrote to `labs/masters/NN_name/recorded.json` (or `name` there).

    Raises:
        CourseError: no such lab.
        OSError, ValueError: no such file, or a file of another kind.
    """
    return RecordedReconciliation.load(find_lab(lab, find_labs_folder()).folder / f"{name}.json")
