"""Recorded comparison of predicted and measured times, with machine, date, versions and load.

A small JSON file next to the lab that shows it, for a learner on a busy machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lablib.signature import checked
from lablib.text.files import parse_json, read_text, write_text
from lablib.text.markup import paragraph, table_html
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    import pandas as pd

PART = ("kind", "name", "group", "size_bytes")  # two rows with these in common are the same part


@dataclass(frozen=True)
class RecordedReconciliation:
    """The numbers of a `Reconciliation` without its runs."""

    about: Mapping[str, str]  # machine, date, versions, backend, ranks, load
    said: str  # the sentence on makespans, error and noise
    reading: str  # whether the machine was quiet, and which conclusions are valid
    rows: Sequence[Mapping[str, Any]]  # the rows of `Reconciliation.table()`, with None instead of NaN

    @staticmethod
    @checked
    def load(path: str | Path) -> RecordedReconciliation:
        """Read a file written by `save`. OSError: the file cannot be read. ValueError: it has other contents."""
        try:
            return RecordedReconciliation(**parse_json(read_text(path)))
        except TypeError:
            raise ValueError(f"{path} must be what save() of a comparison wrote; record it again") from None

    @checked
    def save(self, path: str | Path) -> None:
        """Write it as JSON. Raises OSError if the file cannot be written."""
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")

    def sentence(self) -> str:
        """The prediction and the measurement, with machine and date."""
        about, count = self.about, self.about["ranks"]  # a text that is not a number is kept
        ranks = plural(int(count), "ranks") if count.isdecimal() else f"{count} ranks"
        where = f"{about['machine']}, {ranks} on {about['backend']}, {about['date']}"
        return f"{self.said} Recorded on {where} (torch {about['torch']}, Python {about['python']})."

    def table(self) -> pd.DataFrame:
        """The rows, as in `Reconciliation.table()`."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __repr__(self) -> str:
        return f"{self.sentence()} {self.reading}"

    def _repr_html_(self) -> str:
        table = table_html(self.table(), index=False, float_format="{:.3g}".format, na_rep="-")
        return paragraph(self.sentence()) + paragraph(self.reading) + table


def beside(here: pd.DataFrame, recorded: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Columns of two tables side by side, matched by name and size of the part, in the order of `here`."""
    import pandas as pd

    both = here.merge(recorded, how="left", on=list(PART), suffixes=(" here", " recorded"))
    sizes = [f" of {format_quantity(size, 'B')}" if size else "" for size in both["size_bytes"]]
    both["name"] = both["name"] + sizes
    chosen = [f"{column} {side}" for side in ("here", "recorded") for column in columns]
    return pd.DataFrame(both.set_index("name")[chosen])
