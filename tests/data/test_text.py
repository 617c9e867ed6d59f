"""The corpus from the standard library is the same bytes every time, checked, and whole or not there."""

import hashlib
import os
import sysconfig
from pathlib import Path

import pytest
import torch

from lablib.data import cache_folder, load_corpus, train_val_split
from lablib.data.cache import read_entry, write_entry
from lablib.data.sources import CorpusUnavailableError, standard_library


def test_modules_come_ordered_by_path_without_tests_packages_and_links(library):
    source = standard_library(library)
    assert b"".join(source.chunks) == b"# a.py\n\n# a/z.py\n\n# b.py\n\n# json/decoder.py\n\n"
    assert "4 modules" in source.origin


def test_the_corpus_is_the_standard_library_of_this_python(cache):
    corpus = load_corpus()
    data = bytes(corpus.tokens.numpy())
    assert corpus.tokens.dtype == torch.uint8
    assert len(corpus) == len(data) > 5_000_000
    assert corpus.sha256 == hashlib.sha256(data).hexdigest()
    assert Path(sysconfig.get_path("stdlib"), "argparse.py").read_bytes() in data
    assert f"{len(corpus):,} bytes, sha256 {corpus.sha256[:12]}" in repr(corpus)


def test_a_second_load_reads_the_cache_and_gives_the_same_bytes(cache):
    first = load_corpus()
    (path,) = cache.glob("*.bin")
    written = path.stat().st_mtime_ns
    second = load_corpus()
    assert path.stat().st_mtime_ns == written
    assert second.sha256 == first.sha256
    assert torch.equal(second.tokens, first.tokens)
    assert len(list(cache.iterdir())) == 2  # bytes and their checksum, nothing unfinished


@pytest.mark.parametrize("damage", ["flip a byte", "cut the end", "garbage about it", "empty about it"])
def test_a_damaged_cache_is_noticed_and_built_again(cache, damage):
    whole = load_corpus()
    (path,), (about,) = cache.glob("*.bin"), cache.glob("*.json")
    with path.open("r+b") as file:
        if damage == "flip a byte":
            file.seek(1_000_000)
            byte = file.read(1)
            file.seek(1_000_000)
            file.write(bytes([byte[0] ^ 1]))
        elif damage == "cut the end":
            file.truncate(1_000_000)
    if damage.endswith("about it"):
        about.write_text("{]" if damage.startswith("garbage") else "{}")
    with pytest.warns(UserWarning, match="does not match its checksum: it is built again"):
        again = load_corpus()
    assert again.sha256 == whole.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_interrupted_write_leaves_what_was_there(tmp_path):
    before = write_entry(tmp_path, "text", [b"whole"], "a test")

    def chunks():
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_entry(tmp_path, "text", chunks(), "a test")
    assert read_entry(tmp_path, "text") == before
    assert (tmp_path / "text.bin").read_bytes() == b"whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.bin", "text.json"]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    def chunks():
        yield b"half"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"cannot be written to .*No space left on device.*free some space"):
        write_entry(tmp_path, "text", chunks(), "a test")
    assert not list(tmp_path.iterdir())


def test_a_cache_that_is_no_folder_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "file"))
    with pytest.raises(OSError, match="set LAB_DATA to another folder"):
        load_corpus()


def test_files_of_the_cache_can_be_read_by_others(tmp_path):
    write_entry(tmp_path, "text", [b"shared"], "a test")
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in tmp_path.iterdir())


def test_the_cache_is_where_lab_data_says_else_where_the_platform_keeps_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("LAB_DATA", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("LAB_DATA")
    assert cache_folder().parts[-2:] == ("lablib", "corpora")


def test_a_python_without_sources_is_one_sentence(tmp_path):
    with pytest.raises(CorpusUnavailableError, match="no source files in"):
        standard_library(tmp_path)


def test_the_split_is_the_corpus_in_two_parts(cache):
    corpus = load_corpus()
    train, val = train_val_split(corpus, 0.25)
    assert torch.equal(torch.cat([train.tokens, val.tokens]), corpus.tokens)
    assert len(val) == len(val.tokens) == round(len(corpus) / 4)
    assert train.name == "python-stdlib[train]"
    assert train.tokens.data_ptr() == corpus.tokens.data_ptr()  # a view: nothing is copied


def test_a_corpus_shows_its_text(cache):
    corpus = load_corpus()
    assert corpus.text(0, 20).encode() == bytes(corpus.tokens[:20].tolist())


def test_the_cache_works_from_any_folder(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("LAB_DATA", os.path.relpath(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
