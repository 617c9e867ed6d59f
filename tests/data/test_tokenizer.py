"""A tokenizer returns every text, knows its own tokens, and its merges are those of the naive algorithm."""

import json
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.data.tokenizer import (
    END_OF_DOCUMENT,
    FORMAT,
    ForeignTokensError,
    Tokenizer,
    load_tokenizer,
    train_tokenizer,
)
from tests.data.naive_bpe import byte_letters, encode_bpe, split_into_pieces, train_bpe

TEXTS = ["low low low lower newest newest widest", "def f(x):\n    return x + 1\n", "naïve café 东京 \U0001f600"] * 2
TOKENIZER = train_tokenizer(TEXTS, 300, corpus="small")


def merges_of(tokenizer: Tokenizer) -> list[tuple[bytes, ...]]:
    letters = byte_letters()
    merges = json.loads(tokenizer.library.to_str())["model"]["merges"]
    return [tuple(bytes(letters[letter] for letter in token) for token in pair) for pair in merges]


def bytes_in_order(tokenizer: Tokenizer) -> list[bytes]:
    letters = byte_letters()
    return [bytes([letters[letter]]) for letter in sorted(letters, key=tokenizer.library.get_vocab().__getitem__)]


@given(st.text())
def test_every_text_comes_back(text):
    tokens = TOKENIZER.encode(text)
    assert TOKENIZER.decode(tokens) == text
    assert TOKENIZER.end_of_document not in tokens.tolist()


@given(st.lists(st.sampled_from([END_OF_DOCUMENT, "low", " ", "\x00", "\u0301", "\U0001f600", "\r\n"])).map("".join))
def test_a_text_cannot_write_the_end_of_a_document(text):
    tokens = TOKENIZER.encode(text)
    assert TOKENIZER.end_of_document not in tokens.tolist() and TOKENIZER.decode(tokens) == text


def test_the_end_of_a_document_is_a_token_of_its_own():
    joined = [*TOKENIZER.encode("a").tolist(), TOKENIZER.end_of_document, *TOKENIZER.encode("b").tolist()]
    assert TOKENIZER.decode(joined) == f"a{END_OF_DOCUMENT}b"


@given(st.lists(st.text(alphabet="ab ", max_size=30), min_size=1, max_size=5), st.integers(258, 275))
def test_the_merges_are_those_of_the_naive_trainer(texts, vocab_size):
    texts = [*texts, "ab"]
    tokenizer = train_tokenizer(texts, vocab_size)
    pieces = Counter(piece for text in texts for piece in split_into_pieces(text))
    # The library's vocabulary has one token more: the end of a document.
    naive = train_bpe(pieces, vocab_size - 1, bytes_in_order(tokenizer))
    assert merges_of(tokenizer) == naive


def test_naive_and_library_agree_on_prose_and_encode_alike():
    texts = [str(train_tokenizer.__doc__), str(Tokenizer.__doc__), str(json.__doc__)]
    tokenizer = train_tokenizer(texts, 500)
    pieces = Counter(piece for text in texts for piece in split_into_pieces(text))
    merges = train_bpe(pieces, 499, bytes_in_order(tokenizer))
    assert merges_of(tokenizer) == merges and len(merges) > 200
    for text in texts:
        tokens = [token for piece in split_into_pieces(text) for token in encode_bpe(piece, merges)]
        assert [token.decode("utf-8", "replace") for token in tokens] == [
            tokenizer.decode([number]) for number in tokenizer.encode(text).tolist()
        ]


def test_the_merges_of_a_small_text_by_hand():
    # l o w x 3 (one in lower): lo and ow are equally frequent, o comes after l; then low; then the rest in order.
    merges = train_bpe({b"low": 2, b"lower": 1}, 260)
    assert merges == [(b"l", b"o"), (b"lo", b"w"), (b"e", b"r"), (b"low", b"er")]
    assert train_bpe({b"aaa": 1}, 257) == [(b"a", b"a")]
    assert encode_bpe(b"aaab", [(b"a", b"a")]) == [b"aa", b"a", b"b"]
    assert train_bpe({b"a": 9}, 300) == []  # nothing left to join


def test_training_is_deterministic_and_bytes_alone_are_one_byte_a_token():
    again = train_tokenizer(iter(TEXTS), 300, corpus="small")
    assert again.identity == TOKENIZER.identity and again.corpus_sha256 == TOKENIZER.corpus_sha256
    assert train_tokenizer(TEXTS, 280).identity != TOKENIZER.identity
    bytes_only = train_tokenizer(TEXTS, 257)
    assert bytes_only.bytes_per_token(TEXTS) == 1
    assert TOKENIZER.bytes_per_token(TEXTS) > 1.5
    assert TOKENIZER.vocab_size == 300 and bytes_only.vocab_size == 257


def test_a_saved_tokenizer_is_the_same(tmp_path):
    TOKENIZER.save(tmp_path / "t.json")
    loaded = load_tokenizer(tmp_path / "t.json")
    assert (loaded.identity, loaded.corpus, loaded.corpus_sha256) == (
        TOKENIZER.identity,
        "small",
        TOKENIZER.corpus_sha256,
    )
    text = f"lower {END_OF_DOCUMENT} 东京"
    assert (
        loaded.encode(text).tolist() == TOKENIZER.encode(text).tolist() and loaded.decode(loaded.encode(text)) == text
    )


def test_a_changed_or_foreign_file_is_refused(tmp_path):
    path = tmp_path / "t.json"
    TOKENIZER.save(path)
    found = json.loads(path.read_text("utf-8"))
    found["tokenizer"]["model"]["merges"].pop()
    path.write_text(json.dumps(found), "utf-8")
    with pytest.raises(ValueError, match="was changed since it was saved"):
        load_tokenizer(path)
    path.write_text("[]", "utf-8")
    with pytest.raises(ValueError, match="must be a file of Tokenizer.save"):
        load_tokenizer(path)


SAVED = {"format": FORMAT, "corpus": "small", "corpus_sha256": "", "identity": TOKENIZER.identity}


@given(part=st.floats(0, 0.999))
def test_a_file_that_is_cut_is_refused_by_its_name(tmp_path_factory, part):
    path = tmp_path_factory.mktemp("cut") / "t.json"
    TOKENIZER.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ValueError, match=r"t.json must be a file of Tokenizer.save \("):
        load_tokenizer(path)


@given(
    field=st.sampled_from(["corpus", "corpus_sha256", "identity", "tokenizer", "model", "added_tokens"]),
    value=st.none() | st.integers() | st.text(max_size=3) | st.just({}) | st.just([]),
)
def test_a_file_with_a_field_of_something_else_is_refused(tmp_path_factory, field, value):
    path = tmp_path_factory.mktemp("changed") / "t.json"
    model = json.loads(TOKENIZER.library.to_str())
    found = SAVED | {"tokenizer": model}
    (model if field in model else found)[field] = value
    path.write_text(json.dumps(found), "utf-8")
    if field.startswith("corpus") and isinstance(value, str):  # a name, which nothing hangs on
        assert load_tokenizer(path).identity == TOKENIZER.identity
        return
    with pytest.raises(ValueError, match="was changed since it was saved"):
        load_tokenizer(path)


@given(plane=st.integers(0, 16), places=st.lists(st.integers(0, 0xFFFF), max_size=40))
def test_every_plane_of_unicode_comes_back(plane, places):
    text = "".join(chr(plane << 16 | place) for place in places if plane or not 0xD800 <= place < 0xE000)
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_what_does_not_belong_to_a_tokenizer_is_one_clear_error():
    with pytest.raises(ForeignTokensError, match=r"in \[0, 300\).*token 1 is 300"):
        TOKENIZER.decode([0, 300])
    with pytest.raises(ForeignTokensError, match="token 0 is -1"):
        TOKENIZER.decode([-1])
    other = train_tokenizer(["another corpus"], 260, corpus="other")
    with pytest.raises(ForeignTokensError, match="train.bin was made with tokenizer .*'small' with 300 tokens"):
        TOKENIZER.check_identity(other.identity, "train.bin")
    TOKENIZER.check_identity(TOKENIZER.identity, "train.bin")
    with pytest.raises(ValueError, match="text 0 has half a character at 1"):
        TOKENIZER.encode("a\ud800")
    for wrong in (torch.zeros(2, 2, dtype=torch.int64), torch.tensor([1.7]), torch.tensor(3)):
        with pytest.raises(ValueError, match="one row of whole numbers: got"):
            TOKENIZER.decode(wrong)
    with pytest.raises(ValueError, match="trained on text: got none"):
        train_tokenizer(["", ""], 300)
    with pytest.raises(ValueError, match="needs text: got none"):
        TOKENIZER.bytes_per_token([""])
