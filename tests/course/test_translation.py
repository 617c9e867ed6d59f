"""Translations: the text stays as it was where there is none, stale ones are found, messages keep their numbers."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib import KillRank, launch
from lablib.cli.main import _dispatch, main
from lablib.course.building.build import build, check_built
from lablib.course.building.master import read_master
from lablib.course.building.notebook import Version, make_notebook
from lablib.course.checks.printing import print_error, print_text
from lablib.course.checks.result import Hint, Result
from lablib.course.errors import CourseError, CourseFailure
from lablib.course.guess import guess
from lablib.course.places import Lab, find_lab, find_labs
from lablib.course.running.recorded import recorded_comparison
from lablib.course.translation import key_of, paragraphs, say_for, texts_in, texts_of, translated
from lablib.course.work import open_copies
from lablib.errors import DeadlockError, LaunchError
from lablib.figures import table
from lablib.figures.show import caption_html
from lablib.labs import lab00
from lablib.labs.translated import translated_figure
from lablib.text.language import language
from lablib.widgets import IntChoice

ROOT = Path(__file__).parents[2]
LABS = [lab for lab in find_labs(ROOT / "labs") if lab.master.is_file()]
TRANSLATIONS = [lab for each in LABS for lab in each.translations]
MESSAGES = ROOT / "lablib" / "course" / "messages"
WORDS = st.lists(st.text("ab.,?", min_size=1, max_size=8), min_size=1, max_size=12)
CHINESE = re.compile("[\u4e00-\u9fff]")
NAMES = r"\S+[.]py:.*|rank|all_reduce|recv|send|tag|world|\b(ns|ms|kB|MB)\b"  # not translated


@pytest.fixture(autouse=True)
def in_english(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAB_LANG", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)


def texts(lab: Lab) -> list[str]:
    return [cell.source for cell in read_master(lab).cells if cell.kind == "markdown"]


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_without_translations_every_text_of_the_course_stays_as_it_is(lab: Lab):
    for text in texts(lab):
        assert translated(text, {}) == text


@given(st.lists(WORDS, min_size=1, max_size=4), st.data())
def test_where_lines_break_makes_no_difference(parts: list[list[str]], data: st.DataObject):
    def wrapped() -> str:
        lines = [words[0] + "".join(data.draw(st.sampled_from(" \n")) + word for word in words[1:]) for words in parts]
        return "\n\n".join(lines)

    by_key = {" ".join(words): f"translation {index}" for index, words in enumerate(parts)}
    assert translated(wrapped(), by_key) == "\n\n".join(by_key[" ".join(words)] for words in parts)


def test_tables_lists_and_code_are_one_entry_each_with_their_lines():
    text = "One line\nof text.\n\n| a | b |\n|---|---|\n\n- first\n  item\n- second\n\n"
    text += "```python\nx = 1\n\ny = 2\n```\n\n1. one\n2. two"
    assert [key_of(each) for each in paragraphs(text)] == [
        "One line of text.",
        "| a | b |\n|---|---|",
        "- first item\n- second",
        "```python\nx = 1\n\ny = 2\n```",
        "1. one\n2. two",
    ]


def test_a_translation_is_begun_kept_at_an_update_and_stale_where_the_master_has_changed(lab: Lab, capsys):
    build([lab])
    assert check_built([lab]) == []
    with pytest.raises(CourseError, match="--extract 00"):
        main_or_raise(["build", "--lang", "zh", "90"])
    main_or_raise(["build", "--lang", "zh", "--extract", "90"])
    assert "lab 90 in zh: 0% translated" in capsys.readouterr().out
    chinese = replace(lab, language="zh")
    entries = chinese.translation.read_text("utf-8")
    first = next(key_of(each) for text in texts(lab) for each in paragraphs(text) if "one pass over" in key_of(each))
    written = entries.replace(f'msgid "{first}"\nmsgstr ""', f'msgid "{first}"\nmsgstr "一遍扫过"')
    assert written != entries
    chinese.translation.write_text(written, "utf-8")
    with pytest.raises(CourseFailure, match="zh.*differs from its master"):
        check_built([lab])
    build([lab])
    assert "一遍扫过" in chinese.notebook.read_text("utf-8") and "一遍扫过" not in lab.notebook.read_text("utf-8")
    assert re.fullmatch(r"lab 90 in zh: [1-9]\d?% translated", check_built([lab])[0])
    lab.master.write_text(lab.master.read_text("utf-8").replace("in one pass over", "in a single pass over"), "utf-8")
    build([lab])
    with pytest.raises(CourseFailure, match="1 stale translation, .* run `lab build --lang zh --extract 90`"):
        check_built([lab])
    main_or_raise(["build", "--lang", "zh", "--extract", "90"])
    later = chinese.translation.read_text("utf-8")
    assert "#, fuzzy" in later and "一遍扫过" in later  # kept for the translator, and not shown
    assert "一遍扫过" not in chinese.notebook.read_text("utf-8")
    check_built([lab])
    main_or_raise(["build", "--lang", "zh", "--extract", "90"])
    assert chinese.translation.read_text("utf-8") == later


def main_or_raise(words: list[str]) -> None:
    assert _dispatch(words) == 0


def test_a_learner_in_chinese_works_on_a_copy_of_its_own(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    main_or_raise(["build", "--lang", "zh", "--extract", "90"])
    assert lab.chosen == lab
    monkeypatch.setenv("LAB_LANG", "zh_CN.UTF-8")
    chinese = lab.chosen
    assert chinese.language == "zh" and chinese.work.name == "90_example.zh.ipynb"
    assert chinese.notebook == lab.labs / "zh" / "90_example.ipynb"
    open_copies([chinese])
    assert nbformat.read(chinese.work, as_version=4).metadata.lablib.language == "zh" and not lab.work.exists()
    monkeypatch.setenv("LAB_LANG", "fr")
    assert lab.chosen == lab  # no such translation
    for path in (chinese.work, chinese.notebook):
        assert find_lab(str(path), lab.labs) == chinese == find_lab(str(path), lab.labs).chosen
    assert find_labs(lab.labs) == [lab]


def test_the_language_is_chosen_or_that_of_the_notebook(labs: Path, monkeypatch: pytest.MonkeyPatch):
    assert not language()
    for session, code in {
        "/course/work/00_first_steps.zh.ipynb": "zh",
        "/course/labs/zh/00_first_steps.ipynb": "zh",
        "/course/work/00_first_steps.ipynb": "",
        "/course/labs/00_first_steps.ipynb": "",
    }.items():
        monkeypatch.setenv("JPY_SESSION_NAME", session)
        assert language() == code
    monkeypatch.setenv("JPY_SESSION_NAME", "work/00_first_steps.zh.ipynb")
    for chosen, code in {"en": "", "zh": "zh", "zh-Hans": "zh", "ja": "ja"}.items():
        monkeypatch.setenv("LAB_LANG", chosen)
        assert language() == code
    monkeypatch.setenv("LAB_LANG", "Chinese language")
    assert main(["reset", "90"]) == 2
    with pytest.raises(ValueError, match="LAB_LANG must be the code of a language: got .*; try LAB_LANG=zh"):
        language()


@pytest.mark.parametrize("lab", TRANSLATIONS, ids=lambda lab: f"{lab.number}-{lab.language}")
def test_a_translated_lab_has_the_cells_and_the_code_of_its_master(lab: Lab):
    master = read_master(replace(lab, language=""))
    for version in Version:
        english = make_notebook(master, version)
        other = make_notebook(replace(master, lab=lab), version)
        assert [cell.cell_type for cell in other.cells] == [cell.cell_type for cell in english.cells]
        for mine, theirs in zip(other.cells, english.cells, strict=True):
            code = re.compile(r"`[^`]+`")
            if mine.cell_type == "code":
                assert mine.source == theirs.source
            else:  # the same names and numbers: a word of code may stand once more or less
                assert set(code.findall(mine.source)) == set(code.findall(theirs.source)), mine.source


def test_lab_00_is_whole_in_chinese():
    lab = replace(LABS[0], language="zh")
    assert lab in TRANSLATIONS
    assert check_built([LABS[0]]) == ["lab 00 in zh: 100% translated"]
    notebook = make_notebook(replace(read_master(LABS[0]), lab=lab), Version.LEARNER)
    assert all(CHINESE.search(cell.source) for cell in notebook.cells if cell.cell_type == "markdown")
    headings = [line for cell in notebook.cells for line in cell.source.split("\n") if line.startswith("## ")]
    assert headings and all(re.fullmatch(r"## .*（\d+ 分钟）", line) for line in headings)


def glossary() -> list[list[str]]:
    lines = (ROOT / "docs" / "glossary.zh.md").read_text("utf-8").splitlines()
    return [[part.strip() for part in line.split("|")[1:4]] for line in lines if line.startswith("| ")][1:]


def test_the_glossary_has_each_term_once_and_the_labs_use_its_words():
    rows = glossary()
    assert len(rows) >= 120 and len({term.lower() for term, _, _ in rows}) == len(rows)
    assert all(chinese for _, chinese, _ in rows)
    wrong = []
    for lab in TRANSLATIONS:
        for english, chinese in texts_of(lab.translation).items():
            prose = re.sub(r"`[^`]*`", "", english) if "arXiv" not in english else ""  # titles of papers stay
            for term, word, _ in rows:
                if re.search(rf"\b{re.escape(term)}s?\b", prose, re.IGNORECASE) and word not in chinese:
                    wrong.append(f"lab {lab.number}: {term} is {word}: {chinese[:60]}")
    assert wrong == []


def test_every_translated_message_exists_and_keeps_its_values():
    course = ROOT / "lablib" / "course"
    files = {MESSAGES / "checks.zh.po": [course / "guess.py", *(course / "checks").glob("*.py")]}
    files |= {lab.translation.with_name("checks.zh.po"): [lab.checks] for lab in TRANSLATIONS}
    for path, sources in files.items():
        known = {text for source in sources for text in texts_in(ast.parse(source.read_text("utf-8")))}
        assert [text for text in texts_of(path) if text not in known] == []
    for path in (*files, *(MESSAGES / f"{name}.zh.po" for name in ("errors", "output", "figures"))):
        for text, translation in texts_of(path).items():
            values = [f"value {index}" for index in range(text.count("{}"))]
            said = translation.format(*values) if values else translation
            assert all(value in said for value in values), text


def test_results_and_hints_are_in_the_readers_language_and_else_english(monkeypatch: pytest.MonkeyPatch):
    result = Result("00", "mean_over_ranks", "The mean over ranks", "failed", "communications on 4 ranks")
    result = replace(result, saw="2 calls, 2 times the budget", expected="at most 1 call")
    english, html = result.message, result._repr_html_()
    assert english.splitlines()[:2] == ["failed: The mean over ranks", "  rule      communications on 4 ranks"]
    monkeypatch.setenv("LAB_LANG", "zh")
    assert result.message.splitlines() == [
        "未通过：各 rank 的均值",
        "  规则      4 个 rank 上的通信次数",
        "  实际      2 次调用，为预算的 2 倍",
        "  期望      不超过 1 次调用",
    ]
    assert "未通过" in result._repr_html_()
    assert repr(Hint("各 rank 的均值", ("提示文字",), 2)) == "提示 1/3：提示文字\n（还剩 2 条）"
    monkeypatch.setenv("LAB_LANG", "fr")  # without a catalogue
    assert result.message == english and result._repr_html_() == html and say_for("00")("failed") == "failed"


def swap() -> None:
    dist.recv(torch.zeros(1), src=1 - dist.get_rank())


def one_leaves() -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))


def shapes_differ() -> None:
    dist.all_reduce(torch.ones(3 + dist.get_rank()))


@pytest.mark.parametrize(
    "program, faults, english, chinese",
    [
        (swap, [], "deadlock: 2 of 2 ranks wait", "死锁：2 个 rank 中有 2 个在等待，没有一个能继续。"),
        (one_leaves, [], "1 returned without joining", "1 个未参与就返回了。"),
        (shapes_differ, [], "ranks disagree on the shape", "各 rank 的 shape 不一致"),
        (one_leaves, [KillRank(1, at_s=0)], "rank 1 died at 0 s", "rank 1 在 0 s 时挂掉（KillRank）；1 个 rank 在等待"),
    ],
)
def test_errors_of_a_launch_are_in_the_readers_language(
    program, faults, english: str, chinese: str, monkeypatch: pytest.MonkeyPatch, capsys
):
    with pytest.raises(LaunchError) as caught:
        launch(program, ranks=2, faults=faults)
    print_error(caught.value)
    assert english in capsys.readouterr().out
    monkeypatch.setenv("LAB_LANG", "zh")
    print_error(caught.value)
    said = capsys.readouterr().out
    assert chinese in said
    assert not re.search(r"waits in|posted|disagree|died|finished|called|not there|joining", said)


def relu_twice() -> None:
    w = torch.ones(64, 64, requires_grad=True)
    ((torch.ones(256, 64) @ w).relu() @ w).relu().sum().backward()
    if dist.get_rank() == 1:
        torch.ones(512, 512) @ torch.ones(512, 512)
    dist.all_reduce(w.grad)


def test_sentences_about_a_run_and_questions_are_in_the_readers_language(monkeypatch: pytest.MonkeyPatch, capsys):
    run = launch(relu_twice, ranks=2)
    recorded = recorded_comparison("00")
    texts = [run.summary().sentence(), run.memory.explain(rank=0), recorded.sentence(), recorded.reading]
    for text in texts:
        print_text(text)
    assert capsys.readouterr().out.split() == " ".join(texts).split()
    monkeypatch.setenv("LAB_LANG", "zh")
    for text in texts:
        print_text(text)
    said = capsys.readouterr().out
    assert "主要在等 rank 1" in said and "噪声" in said and "激活值 " in said and "耗时最长的都是反向" in said
    assert not re.search("step|compute|held|made in|Predicted|Recorded|runs|still|allocations|there", said)
    guess("times as long", None, False, "times").reveal(3)
    assert "耗时的倍数：没有填写猜测；答案是 3 倍" in capsys.readouterr().out


def words_of(value: Any, key: str = "") -> Iterator[str]:
    """Texts of a figure, without tags."""
    if isinstance(value, dict):
        yield from (text for name, one in value.items() if name != "subtitle" for text in words_of(one, name))
    elif isinstance(value, list | tuple):
        yield from (text for one in value for text in words_of(one, key))
    elif isinstance(value, str) and key in ("text", "name", "summary", "label"):
        yield re.sub(r"<[^>]*>", "", value)


def test_figures_controls_and_tables_are_in_the_readers_language(monkeypatch: pytest.MonkeyPatch):
    run = launch(relu_twice, ranks=2)
    with pytest.raises(DeadlockError) as caught:
        launch(swap, ranks=2)
    memory = lab00.figure_memory(run.memory, timeline=run.timeline, rank=0)
    figures = [lab00.figure_question(), run.timeline.figure(), memory, lab00.figure_waits(caught.value)]
    assert all(translated_figure(figure) is figure for figure in figures)
    monkeypatch.setenv("LAB_LANG", "zh")
    for figure in figures:
        chinese = translated_figure(figure)
        texts = [re.sub(NAMES, "", text) for text in words_of(chinese.to_plotly_json())]
        english = [text for text in texts if re.search("[a-z]{2}", text)]
        assert english == [] and CHINESE.search(caption_html(chinese)), english
        assert table(chinese).shape == table(figure).shape
        assert all(CHINESE.search(name) for name in table(chinese) if name not in ("rank", "flops")), table(chinese)
    controls = [IntChoice("rows", "Ranks", (1, 2), 1)]
    explored: Any = lab00.explore(lambda rows: run.timeline, lab00.figure_timeline, controls)
    assert explored.controls["rows"].description == "rank 数" and "总时长" in explored.caption.text


@pytest.mark.parametrize("lab", TRANSLATIONS, ids=lambda lab: f"{lab.number}-{lab.language}")
def test_the_questions_of_a_translated_lab_are_translated(lab: Lab):
    cells = [cell.source for cell in read_master(lab).cells if cell.kind == "code"]
    calls = [node for cell in cells for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Call)]
    asked = [texts_in(call.args[0])[0] for call in calls if ast.unparse(call.func).endswith(".guess")]
    known = texts_of(MESSAGES / f"output.{lab.language}.po")
    assert asked and [text for one in asked for text in (one, one.partition(" (")[0]) if text not in known] == []


def test_the_chinese_readme_has_the_numbers_and_the_labs_of_the_english_one():
    english, chinese = ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh.md"))
    block = english.split("<!-- validation -->")[1].split("<!-- /validation -->")[0]
    section = chinese.split("<!-- validation -->")[1].split("<!-- /validation -->")[0]
    numbers = re.compile(r"[+-]?\d[\d.]*%?")
    assert sorted(numbers.findall(section)) == sorted(number.rstrip(".") for number in numbers.findall(block))
    lab, links = re.compile(r"^\| `(\w+)` \|", re.MULTILINE), re.compile(r"\]\(([^)\s]+)\)")
    assert lab.findall(chinese) == lab.findall(english)
    assert set(links.findall(english)) - {"README.zh.md"} <= set(links.findall(chinese))
    exercises = sum(len(read_master(lab).exercises) for lab in LABS)
    assert f"| {exercises} exercises, " in english and f"| {exercises} 道练习，" in chinese
