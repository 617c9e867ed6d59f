"""The comparison of predicted and measured that a lab keeps beside its master, recorded on a machine that was quiet."""

from lablib.course.places import find_lab, find_labs_folder
from lablib.record.comparison import RecordedReconciliation
from lablib.signature import checked


@checked
def recorded_comparison(lab: str, name: str = "recorded") -> RecordedReconciliation:
    """What `comparison.save(...)` wrote as `labs/masters/NN_name/recorded.json` (or another `name` there).

    Raises:
        CourseError: no such lab.
        OSError, ValueError: no such file, or it holds something else.
    """
    return RecordedReconciliation.load(find_lab(lab, find_labs_folder()).folder / f"{name}.json")
