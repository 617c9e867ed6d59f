"""`lab plan --why`: a measured step next to the best plan, by term, with the changed arguments that come nearest."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from lablib.course.table import table
from lablib.plan.search_result import SearchResult
from lablib.text.units import format_quantity, plural
from lablib.validation.explain import Explanation, explain

_ROWS = 5


def explained_plan(options: argparse.Namespace, found: SearchResult, remarks: Sequence[str]) -> int:
    """Print the comparison. The plan is the fastest that fits; if none fits, the one nearest to the memory.

    Raises ValueError: no plan is possible, or an invalid measurement.
    """
    plans = found.plans
    if not plans.is_possible.any():
        raise ValueError(found.sentence())
    i = int(found.order[0] if len(found.order) else np.nanargmin(plans.over_bytes))
    explanation = explain(plans.arguments(i), options.why)
    if len(plans) > 1:
        remarks = [
            *remarks,
            f"The best of {plural(len(plans), 'plans')} is compared; give its split to compare another.",
        ]
    if options.json:
        print(json.dumps(to_json(explanation, options.top) | {"remarks": list(remarks)}, indent=2))
    else:
        print("\n".join([text(explanation, min(options.top, _ROWS)), *remarks]))
    return 0


def text(explanation: Explanation, top: int) -> str:
    """Terms and changes as tables."""
    rows = [
        (
            *(row["term"], format_quantity(row["predicted_s"], "s")),
            *("-" if row[name] is None else format_quantity(row[name], "s") for name in ("measured_s", "difference_s")),
            "-" if row["difference_pct"] is None else f"{row['difference_pct']:+.1f}%",
        )
        for row in explanation.rows()
    ]
    lines = [
        explanation.prediction.sentence(),
        "",
        table(("term", "predicted", "measured", "difference", "of step"), rows),
    ]
    lines += ["", explanation.sentence()]
    measured_s = explanation.measured.step_s
    changes = [
        (
            each.kind,
            each.text,
            format_quantity(each.step_s, "s"),
            f"{each.step_s / measured_s - 1:+.1%}",
            f"{each.gap:.1%}",
        )
        for each in explanation.changes[:top]
    ]
    heading = ("explanation", "with", "predicted", "off by", "apart")
    return "\n".join([*lines, "", table(heading, changes)] if changes else lines)


def to_json(explanation: Explanation, top: int) -> dict[str, Any]:
    """JSON form: seconds."""
    changes = [
        {"kind": each.kind, "text": each.text, "step_time_s": each.step_s, "gap": each.gap}
        for each in explanation.changes[:top]
    ]
    return {
        "sentence": explanation.sentence(),
        "terms": explanation.rows(),
        "gap": explanation.gap,
        "source": explanation.measured.source,
        "changes": changes,
    }
