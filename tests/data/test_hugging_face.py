"""Public corpora: downloaded once through the package `datasets`; where that cannot be, one sentence that says so."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lablib.data import CORPORA, CorpusUnavailableError, documents, load_corpus

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The package `datasets`, replaced by one that answers from memory; the list holds what was asked of it."""
    asked: list[tuple[Any, ...]] = []

    def load_dataset(path: str, name: str | None = None, *, split: str) -> list[dict[str, str]]:
        asked.append((path, name, split))
        return [{"text": " = Title = \n"}, {"text": ""}, {"text": "naïve\n"}]

    package = ModuleType("datasets")
    package.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)
    return asked


def test_wikitext_is_its_rows_one_after_another_and_asked_for_once(cache, hub):
    corpus = load_corpus("wikitext-2")
    assert corpus.text() == " = Title = \nnaïve\n"
    assert len(corpus) == len(" = Title = \nnaïve\n".encode())
    assert hub == [("Salesforce/wikitext", "wikitext-2-raw-v1", "train")]
    assert load_corpus("wikitext-2").sha256 == corpus.sha256
    assert len(hub) == 1  # the second came from the cache


def test_a_cached_public_corpus_needs_neither_network_nor_package(cache, hub, monkeypatch):
    text = load_corpus("tinystories").text()
    monkeypatch.setitem(sys.modules, "datasets", None)  # `import datasets` now fails
    assert load_corpus("tinystories").text() == text


def test_stories_are_parted_by_a_mark(cache, hub):
    corpus = load_corpus("tinystories")
    assert corpus.text() == " = Title = \n\n<|endoftext|>\n\n<|endoftext|>\nnaïve\n\n<|endoftext|>\n"
    assert [bytes(document.tolist()).decode() for document in documents(corpus)] == [" = Title = \n", "naïve\n"]
    assert hub == [("roneneldan/TinyStories", None, "train")]


def test_a_missing_package_is_one_sentence(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        CorpusUnavailableError, match="needs the package 'datasets': install it with `pip install"
    ) as info:
        load_corpus("wikitext-2")
    assert "\n" not in str(info.value)
    assert not cache.exists()


def test_this_repositorys_folder_of_that_name_does_not_pass_for_the_package(cache, monkeypatch):
    namespace = ModuleType("datasets")  # what `import datasets` finds from the repository's root: a bare namespace
    monkeypatch.setitem(sys.modules, "datasets", namespace)
    with pytest.raises(CorpusUnavailableError, match="needs the package 'datasets'"):
        load_corpus("wikitext-2")
    assert not (REPOSITORY / "datasets" / "__init__.py").exists()


@pytest.mark.parametrize("error", [ConnectionError("no route\nto host"), OSError("offline"), RuntimeError()])
def test_no_network_is_one_sentence_and_leaves_nothing(cache, hub, monkeypatch, error):
    def load_dataset(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", load_dataset)
    with pytest.raises(CorpusUnavailableError, match=rf"cannot be downloaded \({type(error).__name__}: ") as info:
        load_corpus("tinystories")
    assert "\n" not in str(info.value)
    assert "load_corpus('python-stdlib')" in str(info.value)
    assert not cache.exists()


def test_the_real_package_without_a_network_is_one_sentence(cache, tmp_path):
    """With Hugging Face's package and a hub that refuses connections; without the package, its own sentence."""
    installed = getattr(importlib.util.find_spec("datasets"), "origin", None) is not None
    environment = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path / "hub"),
        "PYTHONPATH": str(REPOSITORY),
    }
    script = [sys.executable, str(REPOSITORY / "datasets" / "build.py"), "wikitext-2"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=200, cwd=REPOSITORY)
    assert done.returncode == 1
    expected = "corpus 'wikitext-2' cannot be downloaded" if installed else "corpus 'wikitext-2' needs the package"
    assert done.stderr.strip().splitlines()[-1].startswith(expected)
    assert not cache.exists()


def test_every_corpus_names_its_source_licence_and_size():
    for name, about in CORPORA.items():
        assert {"kind", "title", "size", "licence", "source"} <= set(about), name
        assert f"`{name}`" in (REPOSITORY / "datasets" / "README.md").read_text()
