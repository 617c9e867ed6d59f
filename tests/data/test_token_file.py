"""Files of tokens give back what was written, in blocks and documents, and refuse what is not whole."""

import errno
import hashlib
import json
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.batches.packing import best_fit, fill_blocks
from lablib.data import token_file
from lablib.data.cache import replacing
from lablib.data.damage import FullDisk
from lablib.data.token_file import TokenFileError, encode_to_file, open_tokens, write_tokens
from lablib.data.tokenizer import ForeignTokensError, train_tokenizer

TEXTS = ["low lower lowest", "", "a new document", "naïve 东京"]
TOKENIZER = train_tokenizer(TEXTS, 270, corpus="small")


@given(
    lengths=st.lists(st.integers(0, 9), max_size=6),
    vocab_size=st.sampled_from([2, 65_536, 65_537, 2**31]),
    block_size=st.integers(1, 7),
)
def test_documents_and_blocks_come_back(tmp_path_factory, lengths, vocab_size, block_size):
    generator = torch.Generator().manual_seed(sum(lengths))
    documents = [torch.randint(vocab_size, (length,), generator=generator) for length in lengths]
    path = tmp_path_factory.mktemp("tokens") / "t.bin"
    header = write_tokens(path, documents, vocab_size, "identity")
    assert header.dtype == ("uint16" if vocab_size <= 65_536 else "uint32")
    assert path.stat().st_size == header.size_bytes
    opened = open_tokens(path)
    assert opened.header == header and len(opened) == sum(lengths)
    assert [opened.document(number).tolist() for number in range(len(lengths))] == [d.tolist() for d in documents]
    stream = torch.cat([*documents, torch.empty(0, dtype=torch.int64)])
    blocks = [opened.block(number, block_size) for number in range(opened.num_blocks(block_size))]
    assert len(blocks) == max(0, len(stream) - 1) // block_size
    for number, (inputs, targets) in enumerate(blocks):
        start = number * block_size
        assert torch.equal(inputs, stream[start : start + block_size])
        assert torch.equal(targets, stream[start + 1 : start + 1 + block_size])


def test_texts_are_encoded_with_their_ends_and_packed(tmp_path):
    path = tmp_path / "new" / "t.bin"
    encode_to_file(path, TEXTS, TOKENIZER)
    opened = open_tokens(path, TOKENIZER)
    assert [TOKENIZER.decode(opened.document(number)) for number in range(4)] == [f"{t}<|endoftext|>" for t in TEXTS]
    assert opened.tokens.dtype == torch.uint16 and (opened.tokens == TOKENIZER.end_of_document).sum() == 4
    pieces = opened.pieces(8)
    packed = fill_blocks(pieces, best_fit([len(piece) for piece in pieces], 8))
    assert sorted(packed.tokens[packed.documents >= 0].tolist()) == sorted(opened.tokens.long().tolist())


def test_the_size_in_bytes_by_hand(tmp_path):
    header = write_tokens(tmp_path / "t.bin", [torch.arange(5), torch.arange(2)], 300, "x")
    assert (tmp_path / "t.bin").stat().st_size == header.size_bytes == 16 + 2 * 8  # 7 x 2 = 14 bytes, 2 zeros, 2 ends


@pytest.mark.parametrize("change", [-1, 8])
def test_a_file_of_another_size_is_named_with_both_sizes(tmp_path, change):
    path = tmp_path / "t.bin"
    header = encode_to_file(path, TEXTS, TOKENIZER)
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + bytes(change))
    with pytest.raises(
        TokenFileError, match=f"t.bin must have {header.size_bytes} bytes.*{header.size_bytes + change}"
    ):
        open_tokens(path, checksum=False)


def test_a_changed_byte_is_found_by_the_checksum(tmp_path):
    path = tmp_path / "t.bin"
    encode_to_file(path, TEXTS, TOKENIZER)
    content = bytearray(path.read_bytes())
    content[3] ^= 4
    path.write_bytes(content)
    with pytest.raises(TokenFileError, match="t.bin has the expected size.*other contents"):
        open_tokens(path)


COUNTS = st.fixed_dictionaries(
    {},
    optional={
        "num_tokens": st.integers(-9, 40),
        "num_documents": st.integers(-2, 9),
        "dtype": st.sampled_from(["uint16", "uint32"]),
        "vocab_size": st.integers(-1, 12),
    },
)


@given(lengths=st.lists(st.integers(0, 5), max_size=6), change=COUNTS, checksum=st.booleans())
def test_a_sidecar_that_was_changed_gives_the_same_tokens_or_none(tmp_path_factory, lengths, change, checksum):
    path, documents = tmp_path_factory.mktemp("tokens") / "t.bin", [torch.arange(length) + 3 for length in lengths]
    write_tokens(path, documents, 9, "identity")
    sidecar = path.with_name("t.bin.json")
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | change))
    try:
        opened = open_tokens(path, checksum=checksum)
    except TokenFileError:
        assert change
        return
    assert [opened.document(number).tolist() for number in range(opened.header.num_documents)] == [
        one.tolist() for one in documents
    ]
    assert not checksum or all(token < opened.header.vocab_size for one in documents for token in one)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_a_file_of_the_other_byte_order_is_refused(tmp_path_factory, lengths):
    path = tmp_path_factory.mktemp("tokens") / "t.bin"
    header = write_tokens(path, [torch.arange(length) for length in lengths], 9, "identity")
    content, edge = path.read_bytes(), header.size_bytes - 8 * len(lengths)
    swapped = b"".join(content[at : at + 2][::-1] for at in range(0, edge, 2))
    swapped += b"".join(content[at : at + 8][::-1] for at in range(edge, len(content), 8))
    path.write_bytes(swapped)
    sidecar = path.with_name("t.bin.json")
    about = json.loads(sidecar.read_text()) | {"sha256": hashlib.sha256(swapped).hexdigest()}
    sidecar.write_text(json.dumps(about))
    for checksum in (True, False):
        with pytest.raises(TokenFileError, match="another byte order; encode the text again"):
            open_tokens(path, checksum=checksum)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.int8, torch.int64])
def test_tokens_of_any_whole_type_are_written(tmp_path, dtype):
    write_tokens(tmp_path / "t.bin", [torch.tensor([3, 0, 7], dtype=dtype)], 9, "x")
    write_tokens(tmp_path / "again.bin", [open_tokens(tmp_path / "t.bin").tokens], 9, "x")
    assert open_tokens(tmp_path / "again.bin").document(0).tolist() == [3, 0, 7]


def test_what_are_no_tokens_is_one_clear_error(tmp_path):
    for dtype in (torch.bool, torch.complex64, torch.float32, torch.uint64):
        with pytest.raises(ValueError, match=f"row of whole numbers: document 0 has .2,. of {dtype}"):
            write_tokens(tmp_path / "u.bin", [torch.zeros(2).to(dtype)], 9, "x")
    assert not list(tmp_path.iterdir())


def test_foreign_files_and_tokens_are_refused(tmp_path):
    path = tmp_path / "t.bin"
    encode_to_file(path, TEXTS, TOKENIZER)
    other = train_tokenizer(["other"], 258, corpus="other")
    with pytest.raises(ForeignTokensError, match="t.bin was made with tokenizer"):
        open_tokens(path, other)
    sidecar = tmp_path / "t.bin.json"
    about = json.loads(sidecar.read_text())
    for wrong, message in (
        (about | {"dtype": "int8"}, "dtype must be one of uint16, uint32: got 'int8'.*; encode the text again"),
        (about | {"format": "other"}, "format must be one of lablib tokens 1: got 'other'"),
        (about | {"dtype": "uint32"}, "270 tokens are stored as uint16: got uint32"),
        ({"dtype": "uint16"}, "does not describe a file of tokens"),
        ([], "does not describe a file of tokens"),
    ):
        sidecar.write_text(json.dumps(wrong))
        with pytest.raises(TokenFileError, match=message):
            open_tokens(path)
    sidecar.unlink()
    with pytest.raises(FileNotFoundError, match="t.bin.json"):
        open_tokens(path)
    with pytest.raises(ForeignTokensError, match=r"in \[0, 3\).*document 1 has 0 to 3"):
        write_tokens(tmp_path / "u.bin", [torch.tensor([2]), torch.tensor([0, 3])], 3, "x")
    with pytest.raises(ForeignTokensError, match="document 0 has -1 to 2"):
        write_tokens(tmp_path / "u.bin", [torch.tensor([2, -1])], 3, "x")
    with pytest.raises(ValueError, match="document 0 has"):
        write_tokens(tmp_path / "u.bin", [torch.zeros(2, 2)], 3, "x")
    assert [one.name for one in tmp_path.iterdir()] == ["t.bin"]  # nothing half is left


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "t.bin"
    write_tokens(path, [torch.arange(9)], 300, "x")

    @contextmanager
    def full(path):
        with replacing(path) as file:
            yield FullDisk(40).file(file)

    monkeypatch.setattr(token_file, "replacing", full)
    with pytest.raises(OSError, match="t.bin: the tokens cannot be written .*free some disk space") as caught:
        write_tokens(path, [torch.arange(99)], 300, "x")
    assert caught.value.errno == errno.ENOSPC
    assert open_tokens(path).document(0).tolist() == list(range(9))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["t.bin", "t.bin.json"]


def test_there_is_no_such_document_or_block(tmp_path):
    write_tokens(tmp_path / "t.bin", [torch.arange(5)], 300, "x")
    opened = open_tokens(tmp_path / "t.bin")
    for number in (-1, 1):
        with pytest.raises(IndexError, match=f"1 documents: there is no number {number}"):
            opened.document(number)
    with pytest.raises(IndexError, match="2 blocks: there is no number 2"):
        opened.block(2, 2)
