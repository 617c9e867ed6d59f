"""Documents of a corpus: joined again they are the corpus; in pieces nothing is lost and none is too long."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.data import cut_documents, documents, load_corpus, train_val_split


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
        (
            lambda: documents(train_val_split(load_corpus())[0]),
            r"whole, knows its documents: got 'python-stdlib\[train",
        ),
        (lambda: documents(replace(load_corpus(), size_bytes=7)), "must add up to the corpus: .* the corpus 7"),
        (lambda: cut_documents([torch.zeros(3)], 0), "max_length must be at least 1 token: got 0"),
        (lambda: cut_documents([torch.zeros(3), torch.zeros(1, 3)], 2), r"document 1 has shape \(1, 3\)"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
