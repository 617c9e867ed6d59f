"""A file of tokens: text encoded once, then mapped into memory and read like an array, from any place.

Tokens are small numbers, so they need no format: two bytes each where the vocabulary has at most 65,536 tokens, four
beyond. Mapped, the file costs no memory until it is read, starts at once however large it is, and is shared by all
workers of a machine through the page cache. Two files, of N tokens in D documents:

    train.bin         N tokens, zeros up to a multiple of 8 bytes, then D ends (int64): document d ends at ends[d]
    train.bin.json    dtype, N, D, sha256 of train.bin, vocab_size, the tokenizer's identity; written last

A block for training is `block_size` tokens: cut from the stream (`block`, no waste, documents in pieces) or packed
(lablib/batches/packing.py) from `pieces`, so that few documents are cut.

Cost: N b + 8 D bytes of disk, b = 2 or 4 bytes per token; a block reads (block_size + 1) b bytes. Opening with
`checksum=True` reads the file once, about a second for each gigabyte.
Shapes: N tokens, D documents; a block of T tokens.
Source: Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053): its megatron/core/datasets/indexed_dataset.py
maps a .bin of tokens and an .idx with the borders.
Simplified: one file, no shards; written by one process.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Int64
from torch import Tensor

from lablib.data.cache import not_written, replacing, sha256_of
from lablib.data.documents import cut_documents
from lablib.data.tokenizer import ForeignTokensError, Tokenizer
from lablib.signature import Count, NonNegativeInt, OneOf, Range, check_fields, checked
from lablib.text.files import parse_json, read_text

FORMAT = "lablib tokens 1"
VocabSize = Annotated[int, Range(ge=1, le=2**32)]  # at most four bytes per token
TEXTS_AT_ONCE = 256  # texts encoded together: enough for every core
CHECKED_AT_ONCE = 2**22  # tokens: a file may be larger than memory
# uint64 is wider than any
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32)
DTYPES = {"uint16": torch.uint16, "uint32": torch.uint32}


class TokenFileError(ValueError):
    """A file of tokens that is truncated, damaged or not one at all; the message names file, expected and found."""


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """The sidecar of a file of tokens, `<name>.json`."""

    format: Annotated[str, OneOf([FORMAT])]
    dtype: Annotated[str, OneOf(DTYPES)]
    num_tokens: NonNegativeInt
    num_documents: NonNegativeInt
    vocab_size: VocabSize
    tokenizer: str
    sha256: str

    def __post_init__(self) -> None:
        check_fields(self)
        if self.dtype != _dtype(self.vocab_size):
            raise ValueError(f"{self.vocab_size} tokens are stored as {_dtype(self.vocab_size)}: got {self.dtype}")

    @property
    def tokens_bytes(self) -> int:
        """Bytes of the tokens alone."""
        return self.num_tokens * DTYPES[self.dtype].itemsize

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole file: tokens, zeros up to a multiple of 8, ends of documents."""
        return _padded(self.tokens_bytes) + 8 * self.num_documents


@dataclass(frozen=True, eq=False)
class TokenFile:
    """Tokens that are mapped from a file. Read them, do not write to them."""

    path: Path  # the file
    header: TokenHeader  # its sidecar
    tokens: Tensor  # uint16 or uint32, [N]
    ends: Int64[Tensor, " D"]  # int64 [D]: where each document ends; it begins where the one before ends

    def __len__(self) -> int:
        return self.header.num_tokens

    def document(self, number: int) -> Int64[Tensor, " n"]:
        """The tokens of one document. Raises IndexError."""
        if not 0 <= number < self.header.num_documents:
            raise IndexError(f"{self.path} has {self.header.num_documents} documents: there is no number {number}.")
        start = int(self.ends[number - 1]) if number else 0
        return self.tokens[start : int(self.ends[number])].long()

    @checked
    def pieces(self, max_length: Count) -> list[Tensor]:
        """All documents in pieces of at most `max_length` tokens, for packing."""
        return cut_documents([self.document(number) for number in range(self.header.num_documents)], max_length)

    @checked
    def num_blocks(self, block_size: Count) -> int:
        """Blocks of the stream; each needs one token more than it has, the last one's target."""
        return max(0, len(self) - 1) // block_size

    @checked
    def block(self, number: int, block_size: Count) -> tuple[Int64[Tensor, " T"], Int64[Tensor, " T"]]:
        """Inputs and targets of one block of the stream, targets one token on. Raises IndexError."""
        if not 0 <= number < self.num_blocks(block_size):
            raise IndexError(f"{self.path} has {self.num_blocks(block_size)} blocks: there is no number {number}.")
        both = self.tokens[number * block_size : (number + 1) * block_size + 1].long()
        return both[:-1], both[1:]

    def __repr__(self) -> str:
        return f"TokenFile({self.path.name}: {len(self):,} tokens in {self.header.num_documents:,} documents)"


@checked
def write_tokens(path: Path, documents: Iterable[Tensor], vocab_size: VocabSize, tokenizer: str) -> TokenHeader:
    """Write documents of tokens, one after another as they come; the files are there whole, or not at all.

    Arguments:
        path: for example train.bin; its sidecar is train.bin.json.
        vocab_size: tokens are below it; up to 65,536 they take two bytes each.
        tokenizer: identity of the tokenizer that made them.

    Raises:
        ForeignTokensError: a token that is not in the vocabulary.
        OSError: no space, no permission; an older file is left.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        header = _write_tokens(path, documents, vocab_size, tokenizer)
        with replacing(_sidecar(path)) as file:
            file.write(json.dumps(asdict(header), indent=1).encode())
    except OSError as error:
        raise not_written(error, path, "the tokens cannot be written") from error
    return header


@checked
def encode_to_file(path: Path, texts: Iterable[str], tokenizer: Tokenizer) -> TokenHeader:
    """Encode texts, each a document with the end of a document after it, and write them. Raises as `write_tokens`."""
    return write_tokens(path, _encoded(texts, tokenizer), tokenizer.vocab_size, tokenizer.identity)


@checked
def open_tokens(path: Path, tokenizer: Tokenizer | None = None, checksum: bool = True) -> TokenFile:
    """Map a file of tokens.

    Arguments:
        tokenizer: refuse tokens of another one; None: accept any.
        checksum: compare the sha256; False opens at once, and finds only a wrong size or wrong ends.

    Raises:
        FileNotFoundError: the file or its sidecar is missing.
        TokenFileError: truncated, damaged or foreign.
        ForeignTokensError: the tokens are of another tokenizer.
    """
    header = _read_header(path)
    found = path.stat().st_size
    if found != header.size_bytes:
        raise TokenFileError(
            f"{path} must have {header.size_bytes} bytes, {header.num_tokens} tokens of {header.dtype} and "
            f"{header.num_documents} ends: found {found}; encode the text again."
        )
    if not found:
        return TokenFile(
            path, header, *(torch.empty(0, dtype=dtype, device="cpu") for dtype in (DTYPES[header.dtype], torch.int64))
        )
    if checksum and (sha256 := sha256_of(path)) != header.sha256:
        raise TokenFileError(
            f"{path} has the expected size, {header.size_bytes} bytes, and other contents: its sha256 must be "
            f"{header.sha256[:12]}..., found {sha256[:12]}...; encode the text again."
        )
    if tokenizer is not None:
        tokenizer.check_identity(header.tokenizer, str(path))
    raw = torch.from_file(str(path), shared=False, size=found, dtype=torch.uint8)
    tokens_N = raw[: header.tokens_bytes].view(DTYPES[header.dtype])
    ends_D = raw[_padded(header.tokens_bytes) :].view(torch.int64)
    _check_header(path, header, tokens_N if checksum else tokens_N[:0], ends_D)
    return TokenFile(path, header, tokens_N, ends_D)


def _write_tokens(path: Path, documents: Iterable[Tensor], vocab_size: int, tokenizer: str) -> TokenHeader:
    dtype = _dtype(vocab_size)
    ends: list[int] = []
    num_tokens, digest = 0, hashlib.sha256()
    with replacing(path) as file:
        for number, document in enumerate(documents):
            _check_tokens(document, number, vocab_size)
            num_tokens += len(document)
            ends.append(num_tokens)
            _write(file, digest, document.to("cpu", DTYPES[dtype]).numpy().tobytes())
        header = TokenHeader(FORMAT, dtype, num_tokens, len(ends), vocab_size, tokenizer, "")
        _write(file, digest, bytes(_padded(header.tokens_bytes) - header.tokens_bytes))
        _write(file, digest, torch.tensor(ends, dtype=torch.int64, device="cpu").numpy().tobytes())
    return replace(header, sha256=digest.hexdigest())


def _dtype(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 2**16 else "uint32"


def _encoded(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[Tensor]:
    end = torch.tensor([tokenizer.end_of_document], device="cpu")
    rest = iter(texts)
    while some := list(islice(rest, TEXTS_AT_ONCE)):
        yield from (torch.cat([tokens, end]) for tokens in tokenizer.encode_many(some))


def _check_tokens(document: Tensor, number: int, vocab_size: int) -> None:
    if document.ndim != 1 or document.dtype not in WHOLE:
        raise ValueError(
            f"a document is one row of whole numbers: document {number} has {tuple(document.shape)} of "
            f"{document.dtype}."
        )
    document = document.long()
    if len(document) and not (document.min() >= 0 and document.max() < vocab_size):
        raise ForeignTokensError(
            f"a token must be in [0, {vocab_size}), the vocabulary: document {number} has "
            f"{int(document.min())} to {int(document.max())}; give vocab_size of the tokenizer that made it."
        )


def _check_header(path: Path, header: TokenHeader, tokens_N: Tensor, ends_D: Tensor) -> None:
    """Compare the sidecar with the ends and the tokens: the checksum covers the file alone."""
    edges = torch.cat([ends_D.new_zeros(1), ends_D, ends_D.new_tensor([header.num_tokens])])
    rest_N = (one.long().max() for one in tokens_N.split(CHECKED_AT_ONCE) if len(one))
    if (edges.diff() < 0).any() or edges[-2] != header.num_tokens or any(top >= header.vocab_size for top in rest_N):
        raise TokenFileError(
            f"{path} and its sidecar must tell of the same tokens, {header.num_tokens} below {header.vocab_size} in "
            f"{header.num_documents} documents of {header.dtype}: the ends of documents or the tokens differ, as after "
            "damage, an edit, or on a machine with another byte order; encode the text again."
        )


def _read_header(path: Path) -> TokenHeader:
    try:
        return TokenHeader(**parse_json(read_text(_sidecar(path))))
    except (TypeError, ValueError) as error:
        raise TokenFileError(
            f"{_sidecar(path)} does not describe a file of tokens ({error}); encode the text again."
        ) from None


def _sidecar(path: Path) -> Path:
    return path.parent / f"{path.name}.json"


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // 8) * 8


def _write(file, digest, content: bytes) -> None:
    file.write(content)
    digest.update(content)
