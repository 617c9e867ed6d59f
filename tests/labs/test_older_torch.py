"""Labs with torch 2.11 and 2.12, which lack some functions of 2.13."""

import runpy
from pathlib import Path

import pytest
import torch.nn.functional as F

CHECKS = sorted((Path(__file__).resolve().parents[2] / "labs/masters").glob("*/checks.py"))


@pytest.mark.parametrize("checks", CHECKS, ids=lambda path: path.parent.name)
def test_the_first_cell_finds_its_checks_without_linear_cross_entropy(checks: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    assert runpy.run_path(str(checks))
