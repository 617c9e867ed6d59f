"""The page: self-contained, escaped, the same content in HTML and Markdown."""

import re
from dataclasses import replace

from lablib.capstone import Report, as_html, as_markdown, findings
from lablib.capstone.consistency import Finding
from lablib.capstone.quantities import QUANTITIES

NOT_RUN = {"small_run": None, "large_run": None, "lock": None, "reconciled": {}}


def test_the_page_has_no_script_and_asks_no_host(report: Report):
    page = as_html(report, [])
    assert "<script" not in page and "src=" not in page and "href=" not in page
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {"http://www.w3.org/2000/svg"}


def test_the_page_has_all_numbers_figures_findings_and_criteria(report: Report):
    found = [Finding("brief", "the run must end in 1 days: got 2.00; take fewer steps")]
    page = as_html(report, found)
    assert page.count("<svg") == 3
    for text in (*(each.title for each in QUANTITIES.values()), found[0].text, "parallel.tensor=2", "instructor"):
        assert text in page, text
    assert "1 findings" not in page and "1 finding;" in page


def test_texts_of_a_report_are_escaped(report: Report):
    bad = replace(report, title="<img src=x onerror=alert(1)>", conclusion="a | b <script>", author="<b>")
    page, text = as_html(bad, []), as_markdown(bad, [])
    assert "<img" not in page and "<script>" not in page and "&lt;img" in page
    assert "<img" not in text and "<script>" not in text


def test_markdown_says_the_same_with_sentences_for_figures(report: Report):
    text = as_markdown(report, [])
    assert text.startswith("# A report\n") and text.count("*Figure.*") == 3
    html = as_html(report, [])
    for heading in re.findall(r"^## (.*)$", text, re.MULTILINE):
        assert f"<h2>{heading}</h2>" in html
    rows = [line for line in text.splitlines() if line.startswith("| step_s") or "a step of the large run" in line]
    assert any("+5.0%" in row for row in rows)


def test_an_unfinished_report_has_a_page_too(report: Report):
    unfinished = replace(report, reasons={}, alternatives=(), conclusion="", **NOT_RUN)
    page = as_html(unfinished, findings(unfinished))
    assert "has not been simulated" in page and "Not locked" in page and page.count("<svg") == 1
