"""A tokenizer: text as numbers of tokens, frequent runs of bytes as one token, and nothing unknown.

Trained by byte-pair encoding (the algorithm in 30 lines: tests/data/naive_bpe.py) on a corpus. As it begins with the
256 bytes, every text can be encoded, and decoding returns it exactly; frequent pieces of the corpus get short:

    tokenizer = train_tokenizer(corpus_texts(load_corpus()), vocab_size=8192, corpus="python-stdlib")
    tokenizer.encode("for i in range(3):")        one token for " in", one for " range"
    tokenizer.bytes_per_token(texts)              about 3.8 on Python's library, 1 for bytes

A model's embedding is a table of exactly these numbers, so tokens of another tokenizer are nonsense to it without any
error. Therefore a tokenizer has an `identity`, a checksum of vocabulary, merges and settings, which files of tokens
carry (`token_file.py`) and `check_identity` compares.

Cost: a table of V x d_model parameters in the model, twice if the output has its own; sequences shorter by the bytes
per token, which attention pays for squared. Encoding: about a megabyte a second and core.
Source: Sennrich et al. 2016, arXiv 1508.07909, section 3.2; Radford et al. 2019 (GPT-2), section 2.2, for bytes and the
pattern that cuts text into words.
Simplified: no normalization; one special token, the end of a document, which no text can write.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tokenizers as hf
from jaxtyping import Int64
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor, tensor

from lablib.data.documents import documents
from lablib.data.text import Corpus
from lablib.signature import Range, checked, fits
from lablib.text.files import parse_json, read_text, write_text

END_OF_DOCUMENT = "<|endoftext|>"
FORMAT = "lablib tokenizer 1"
# The trainer allocates memory for all tokens at once; models have up to 2**18.
VocabSize = Annotated[
    int, Range(ge=257, le=2**22), "give a token for each byte, the end of a document and merges: try vocab_size=8192"
]


class ForeignTokensError(ValueError):
    """Tokens and tokenizer do not belong together."""


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A trained tokenizer."""

    library: hf.Tokenizer  # the `tokenizers.Tokenizer` that does the work
    corpus: str  # name of the corpus that it was trained on
    corpus_sha256: str  # of the bytes of that corpus, in hexadecimal
    identity: str  # sha256 of vocabulary, merges and settings; equal exactly if the same text gives the same tokens

    @property
    def vocab_size(self) -> int:
        """Numbers of tokens are below this."""
        return self.library.get_vocab_size()

    @property
    def end_of_document(self) -> int:
        """The number of the token that ends a document."""
        number = self.library.token_to_id(END_OF_DOCUMENT)
        assert number is not None
        return number

    @checked
    def encode(self, text: str) -> Int64[Tensor, " n"]:
        """The tokens of a text, never the end of a document. ValueError: half a character (a surrogate)."""
        return self.encode_many([text])[0]

    @checked
    def encode_many(self, texts: Sequence[str]) -> list[Int64[Tensor, " n"]]:
        """The tokens of each text, on all cores."""
        for index, text in enumerate(texts):
            _check_text(text, index)
        return [tensor(one.ids, device="cpu").long() for one in self.library.encode_batch_fast(list(texts))]

    @checked
    def decode(self, tokens: Sequence[int] | Tensor) -> str:
        """The text of the tokens, an end of a document written as <|endoftext|>; a cut character becomes U+FFFD.

        Raises:
            ForeignTokensError: a number beyond the vocabulary.
            ValueError: not one row of whole numbers.
        """
        if isinstance(tokens, Tensor) and (tokens.ndim != 1 or tokens.is_floating_point() or tokens.is_complex()):
            raise ValueError(
                f"tokens must be one row of whole numbers: got {tuple(tokens.shape)} of {tokens.dtype}; decode a batch "
                "row by row."
            )
        numbers = [int(token) for token in tokens]
        for place, number in enumerate(numbers):
            if not 0 <= number < self.vocab_size:
                raise ForeignTokensError(
                    f"a token must be in [0, {self.vocab_size}), the vocabulary of this tokenizer: token {place} is "
                    f"{number}; decode it with the tokenizer that made it."
                )
        return self.library.decode(numbers, skip_special_tokens=False)

    @checked
    def bytes_per_token(self, texts: Sequence[str]) -> float:
        """Bytes in UTF-8 over tokens. Raises ValueError where there is no text."""
        num_tokens = sum(map(len, self.encode_many(texts)))
        if not num_tokens:
            raise ValueError("bytes_per_token needs text: got none.")
        return sum(len(text.encode()) for text in texts) / num_tokens

    @checked
    def check_identity(self, identity: str, owner: str) -> None:
        """Raise ForeignTokensError unless `identity`, which `owner` carries, is of this tokenizer."""
        if identity != self.identity:
            raise ForeignTokensError(
                f"tokens and tokenizer must belong together: {owner} was made with tokenizer {identity[:12]}..., and "
                f"this one, of corpus {self.corpus!r} with {self.vocab_size} tokens, is {self.identity[:12]}...; load "
                "the tokenizer that made it, or encode the text again."
            )

    @checked
    def save(self, path: Path) -> None:
        """Write it as one JSON file, whole or not at all. Raises CannotWrite."""
        fields = {name: getattr(self, name) for name in ("corpus", "corpus_sha256", "identity")}
        model = json.loads(self.library.to_str())
        write_text(path, json.dumps({"format": FORMAT, **fields, "tokenizer": model}, ensure_ascii=False, indent=1))

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab_size} tokens, of {self.corpus}, identity {self.identity[:12]}...)"


@checked
def train_tokenizer(texts: Iterable[str], vocab_size: VocabSize, corpus: str = "text") -> Tokenizer:
    """A byte-level BPE tokenizer; the same texts in the same order give the same one. ValueError: no text at all.

    Arguments:
        vocab_size: tokens: 256 bytes, the end of a document, the rest merges; fewer where nothing is left to join.
        corpus: the name of the texts, for messages.
    """
    library = hf.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=0,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    digest = hashlib.sha256()
    library.train_from_iterator(_hashed(texts, digest), trainer)
    return _tokenizer(library, corpus, digest.hexdigest())


@checked
def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer that `save` wrote. OSError: no such file. ValueError: another kind of file, or a changed one."""
    try:
        found = parse_json(read_text(path))
    except ValueError as error:
        raise ValueError(f"{path} must be a file of Tokenizer.save ({error}); train one and save it.") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(
            f"{path} must be a file of Tokenizer.save: its format is not {FORMAT!r}; train one and save it."
        )
    tokenizer = _tokenizer_in(found)
    if tokenizer is None or tokenizer.identity != found.get("identity"):
        raise ValueError(f"{path} was changed since it was saved: its checksum differs; train it again and save it.")
    return tokenizer


@checked
def corpus_texts(corpus: Corpus) -> list[str]:
    """The documents of the standard library as texts; of another corpus the whole, as it does not keep its borders."""
    if corpus.name == "python-stdlib":
        return [bytes(document.numpy()).decode("utf-8", "replace") for document in documents(corpus)]
    return [bytes(corpus.tokens.numpy()).decode("utf-8", "replace")]


def _tokenizer(library: hf.Tokenizer, corpus: str, corpus_sha256: str) -> Tokenizer:
    library.encode_special_tokens = True  # a text that has "<|endoftext|>" in it does not end there
    about: dict[str, Any] = json.loads(library.to_str())
    identity = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return Tokenizer(library, corpus, corpus_sha256, identity)


def _tokenizer_in(found: dict[str, Any]) -> Tokenizer | None:
    """The tokenizer in a file's fields, None if they hold none."""
    about = [found.get("corpus"), found.get("corpus_sha256")]
    try:
        library = hf.Tokenizer.from_str(json.dumps(found.get("tokenizer")))
    except Exception:  # the library raises nothing narrower
        return None
    if library.token_to_id(END_OF_DOCUMENT) is None or not fits(about, list[str]):
        return None
    return _tokenizer(library, *map(str, about))


def _hashed(texts: Iterable[str], digest: Any) -> Iterator[str]:
    """The texts, each added to the checksum; a byte 0xFF parts them."""
    empty = True
    for index, text in enumerate(texts):
        _check_text(text, index)
        digest.update(text.encode() + b"\xff")  # a byte that UTF-8 does not have
        empty = empty and not text
        yield text
    if empty:
        raise ValueError("a tokenizer is trained on text: got none.")


def _check_text(text: str, index: int = 0) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text must have an encoding in UTF-8: text {index} has half a character at {error.start}; "
            'decode its bytes with errors="replace".'
        ) from None
