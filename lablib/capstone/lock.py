"""The lock: a digest of choices and predictions, taken before the runs.

    report = locked(report, now())             before the runs
    is_locked(report)                          later: nothing of it has changed

The runs store the digest and the time at which they began. So a prediction that is changed after a run no longer has
its digest, and a lock that is taken again removes the runs. This finds changes by mistake and by convenience.

It proves nothing against intent. The digest has no secret: `digest` computes it for any numbers, and times are text,
so a file can be written by hand in which every prediction is exact. Nor does it show how often a report was locked:
after a run, the measured numbers can be predicted, locked and run again. The simulation of the large run has no chance
in it, so its numbers can also be known before the first lock. For a proof, hand in the locked report before the runs.
"""

import json
from dataclasses import asdict, fields, replace
from datetime import datetime
from hashlib import sha256

from lablib.capstone.report import Lock, Report, choices_toml
from lablib.signature import checked


@checked
def digest(report: Report) -> str:
    """The SHA-256 of brief, choices and predictions, as far as they differ from defaults."""
    default = {one.name: one.default for one in fields(report.brief)}
    brief = {name: value for name, value in asdict(report.brief).items() if value != default[name]}
    text = json.dumps([brief, report.small_ranks, choices_toml(report)], sort_keys=True)
    return sha256(text.encode()).hexdigest()


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


@checked
def locked(report: Report, at: str) -> Report:
    """The report with a lock, and without runs that came before it. ValueError: a prediction is missing."""
    if missing := [name for name, value in asdict(report.predicted).items() if value in (None, "")]:
        rule = f"a report is locked with all its predictions: missing {', '.join(missing)}"
        raise ValueError(f"{rule}; write predicted.{missing[0]}")
    return replace(report, lock=Lock(at, digest(report)), small_run=None, large_run=None)


@checked
def is_locked(report: Report) -> bool:
    """Whether choices and predictions have not changed since the lock."""
    return report.lock is not None and report.lock.sha256 == digest(report)


def checked_lock(report: Report) -> Lock:
    """The lock of a report that has not changed since. ValueError: there is none, or it changed."""
    if report.lock is None or not is_locked(report):
        got = "no lock" if report.lock is None else "a report that has changed since"
        raise ValueError(f"a run needs locked predictions: got {got}; lock it (`lab capstone lock`)")
    return report.lock
