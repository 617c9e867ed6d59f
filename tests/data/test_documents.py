"""Documents of a corpus: joined again they are the corpus; in pieces nothing is lost and none is too long."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.data import Corpus, cut_documents, documents, load_corpus, train_val_split


def test_documents_are_the_modules_of_the_corpus():
    corpus = load_corpus()
    found = documents(corpus)
    assert len(found) > 300 and min(map(len, found)) > 0
    # Only newlines between modules, and those of modules without text, are in no document.
    between = len(corpus) - sum(map(len, found))
    assert len(found) <= between < len(found) + 50
    words = [bytes(document.tolist()).decode("utf-8", "replace") for document in found]
    # A module begins as modules do, and its last line is whole.
    assert all(compile(text, "module", "exec", dont_inherit=True) for text in words[:20])
    assert found[0].data_ptr() == corpus.tokens.data_ptr()  # views: nothing is copied


def corpus_of(name: str, text: str) -> Corpus:
    tokens = torch.tensor(list(text.encode()), dtype=torch.uint8)
    return Corpus(name, tokens, len(tokens), "", "")


def texts(corpus: Corpus) -> list[str]:
    return [bytes(document.tolist()).decode() for document in documents(corpus)]


WORDS = st.text(st.sampled_from("aé .=<|>\n\r"), max_size=30)


@given(st.lists(WORDS.filter(lambda text: "<|" not in text), min_size=1, max_size=6))
def test_stories_are_what_stands_between_the_marks(stories):
    # As in the published file: a mark on a line of its own after each.
    corpus = corpus_of("tinystories", "".join(story + "\n<|endoftext|>\n" for story in stories))
    assert texts(corpus) == [story for story in stories if story]


@given(
    st.lists(
        st.tuples(WORDS.map(lambda text: re.sub(r"[\n\r]", "", text).strip(" =") or "T"), WORDS), min_size=1, max_size=4
    )
)
def test_an_article_begins_at_its_heading(articles):
    sections = " = = Early life = = \n He was born = early . \n = = = 1 = = = \n"
    # A line of the text begins with its first word there; a heading with the sign.
    whole = [f" = {title} = \n {body.replace('=', '@')}\n{sections}" for title, body in articles]
    assert texts(corpus_of("wikitext-2", "".join(whole))) == whole


def test_what_stands_before_the_first_heading_is_not_lost():
    assert texts(corpus_of("wikitext-2", "a\n = B = \nc\n")) == ["a\n", " = B = \nc\n"]
    assert texts(corpus_of("wikitext-2", "")) == []


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 12))
def test_pieces_are_the_documents_in_order(lengths, most):
    whole = [torch.randint(256, (length,), dtype=torch.uint8) for length in lengths]
    pieces = cut_documents(whole, most)
    assert [len(piece) for piece in pieces] == [
        min(most, length - start) for length in lengths for start in range(0, length, most)
    ]
    assert torch.equal(torch.cat([torch.zeros(0, dtype=torch.uint8), *pieces]), torch.cat([torch.zeros(0), *whole]))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: documents(train_val_split(load_corpus())[0]), r"of a whole corpus .*: got 'python-stdlib\[train"),
        (
            lambda: documents(corpus_of("tinystories", "One.\n\nTwo.")),
            "must end each document of 'tinystories': there is none.* remove it from",
        ),
        (lambda: documents(replace(load_corpus(), size_bytes=7)), "must add up to the corpus: .* the corpus 7"),
        (lambda: cut_documents([torch.zeros(3), torch.zeros(1, 3)], 2), r"document 1 has shape \(1, 3\)"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
