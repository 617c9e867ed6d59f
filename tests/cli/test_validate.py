"""`lab validate`: tables or JSON on stdout, a page where asked, and one sentence for a file that cannot be meant."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lablib.cli import validate as cli_validate
from lablib.cli.main import main
from lablib.validation.rows import published_mixtures, published_rows

ROW: dict[str, Any] = {
    "id": "mine-one",
    "model": {"layers": 32, "hidden": 4096, "heads": 32, "seq": 2048, "vocab": 50304},
    "hardware": {"gpu": "A100-80GB", "gpus": 8},
    "parallel": {"dp": 2, "tp": 4, "pp": 1},
    "batch": {"global": 64, "micro": 4},
    "measured": {"iteration_s": 4.0, "memory_gib_per_gpu": 40.0},
    "recompute": "full",
    "source": {"title": "Megatron", "url": "https://example.org"},
}


class Predicted(NamedTuple):
    step_time_s: float
    peak_memory_bytes: float = 50 * 2**30
    reserved_bytes: float = 52 * 2**30
    device_bytes: float = 54 * 2**30
    fits: bool = True


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch):
    """A planner that says 5 s and 50 GiB of every run."""
    monkeypatch.setattr(cli_validate, "_planner", lambda: lambda **_: Predicted(5.0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(ROW) + "\n", "utf-8")
    return path


def test_the_tables_name_the_error(file: Path, capsys: pytest.CaptureFixture):
    assert main(["validate", str(file)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split()[:2] == ["rows", "of"]
    assert said[1].split()[:5] == ["mine", "1", "25.0%", "25.0%", "+25.0%"]
    assert any(line.split()[:3] == ["mine", "1", "25.0%"] for line in said[4:])  # memory


def test_json_is_the_promised_form_and_nothing_else(file: Path, capsys: pytest.CaptureFixture):
    assert main(["validate", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert list(answer) == ["families", "all", "memory", "skipped", "software"]
    assert set(answer["families"]["mine"]) == {"rows", "refused", "mape", "median", "bias", "max", "naive_mape"}
    assert answer["all"]["mape"] == pytest.approx(25.0) and answer["memory"]["mape"] == pytest.approx(25.0)


def test_without_a_file_it_is_the_rows_that_come_with_lablib(capsys: pytest.CaptureFixture):
    assert main(["validate", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["all"]["rows"] == len(published_rows()) == 296
    # Mixtures of experts are a report of their own.
    assert answer["mixtures"]["all"]["rows"] == len(published_mixtures())
    assert not set(answer["mixtures"]["families"]) & set(answer["families"])
    assert main(["validate"]) == 0
    said = capsys.readouterr().out
    assert "Mixtures of experts, to which nothing was fitted: on" in said and "moebridge-qwen30" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"model": {**ROW["model"], "layers": -1}},
            "line 1: field model.layers: must be a whole number from 1 to 10,000: got -1",
        ),
        ({"modle": ROW["model"], "model": None}, "line 1: field modle: unknown; did you mean model?"),
        ({"measured": {"iteration_s": 4000.0}}, "line 1, mine-one: measured.iteration_s = 4000 means"),
    ],
)
def test_a_file_that_cannot_be_meant_is_one_sentence(change, said, file: Path, capsys: pytest.CaptureFixture):
    file.write_text(json.dumps(ROW | change), "utf-8")
    assert main(["validate", str(file)]) == 2
    error = capsys.readouterr()
    assert said in error.err and error.err.count("\n") == 1 and not error.out


def test_one_row_that_cannot_be_meant_is_named_beside_the_others(file: Path, capsys: pytest.CaptureFixture):
    wrong = ROW | {"id": "mine-wrong", "measured": {"iteration_s": 4000.0}}
    file.write_text("\n".join(json.dumps(row) for row in (ROW, wrong)), "utf-8")
    assert main(["validate", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["all"]["rows"] == 1 and [one["id"] for one in answer["skipped"]] == ["mine-wrong"]
    assert "another unit" in answer["skipped"][0]["reason"]


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert main(["validate", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl cannot be read: No such file" in capsys.readouterr().err


def test_fields_that_nobody_used_are_named(file: Path, capsys: pytest.CaptureFixture):
    file.write_text(json.dumps(ROW | {"weather": "fine"}), "utf-8")
    assert main(["validate", str(file)]) == 0
    assert "Fields not used: weather (1 row)" in capsys.readouterr().out


def test_the_page_its_picture_and_the_readme_are_written(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    readme, page = tmp_path / "README.md", tmp_path / "docs" / "page.md"
    readme.write_text("<!-- validation -->\n<!-- /validation -->\n", "utf-8")
    assert main(["validate", str(file), "--page", str(page), "--readme", str(readme)]) == 0
    assert "![Predicted against published step time, one point per row.](page.svg)" in page.read_text("utf-8")
    assert page.with_suffix(".svg").read_text("utf-8").startswith("<svg")
    assert "(docs/page.svg)" in readme.read_text("utf-8") and "[docs/page.md](docs/page.md)" in readme.read_text(
        "utf-8"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--page", "page.html"], "ending in .md: got page.html; try page.md"),
        (["--readme", "README.md"], "--readme needs --page"),
    ],
)
def test_arguments_that_make_no_sense_are_one_sentence(words, said, file: Path, capsys: pytest.CaptureFixture):
    assert main(["validate", str(file), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_readme_without_marks_is_said(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    readme = tmp_path / "README.md"
    readme.write_text("# A\n", "utf-8")
    assert main(["validate", str(file), "--page", str(tmp_path / "a.md"), "--readme", str(readme)]) == 2
    assert "README.md: it has no marks" in capsys.readouterr().err
