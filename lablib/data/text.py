"""A corpus: text as a row of bytes, each byte a token, mapped from a file that is checked by its sha256.

Bytes need no tokenizer and no vocabulary file: there are 256 of them, every text has them, and the loss in nats,
divided by ln 2, is in bits per byte for any language. (Published models join frequent runs of bytes into some
50 000 tokens: about four bytes per token in English, so their sequences are four times shorter.)

    corpus = load_corpus()                    # Python's standard library: no download
    train, val = train_val_split(corpus)
    for inputs_BT, targets_BT in batches(train, batch_size=8, seq_len=128, seed=0): ...

`datasets/catalogue.toml` lists the corpora.
Cost: N bytes of disk; of memory only the pages that are read.
Shapes: N bytes of the corpus.
Source: byte-level modelling as in Radford et al. 2019, section 2.2, without the merges. Each corpus names its own.
Simplified: no tokenizer; documents follow one another without a mark, as in the file.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from lablib.data.cache import cache_folder, read_entry, write_entry
from lablib.data.sources import hugging_face, standard_library, standard_library_key
from lablib.signature import OneOf, Range, checked

CORPORA: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    # A link to datasets/catalogue.toml, so that an installed package has it too.
    tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text("utf-8"))
)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as bytes."""

    name: str  # in the catalogue; "python-stdlib[train]" for a part
    tokens: UInt8[Tensor, " N"]  # uint8 [N], in [0, 256), mapped from the file. Read it, do not write to it.
    size_bytes: int  # N
    sha256: str  # of the whole file these tokens are from, in hexadecimal
    source: str  # origin of the text

    def text(self, start: int = 0, stop: int | None = None) -> str:
        """The bytes from `start` to `stop` as text; a cut character becomes U+FFFD."""
        return bytes(self.tokens[start:stop].tolist()).decode("utf-8", "replace")

    def __len__(self) -> int:
        return self.size_bytes

    def __repr__(self) -> str:
        return f"Corpus({self.name}: {self.size_bytes:,} bytes, sha256 {self.sha256[:12]}..., {self.source})"


@checked
def load_corpus(name: Annotated[str, OneOf(CORPORA)] = "python-stdlib", folder: Path | None = None) -> Corpus:
    """A corpus of the catalogue, from the cache, where it is built (or, if public, downloaded) the first time.

    `folder`: the cache; None for `cache_folder()`, which the environment's LAB_DATA sets. CorpusUnavailableError: no
    network, or no package; one sentence names the remedy.
    """
    folder = cache_folder() if folder is None else folder
    # A corpus has one key, known before anything is asked of the disk or the network: cached, it needs neither.
    about = CORPORA[name]
    is_of_python = about["kind"] == "standard-library"
    key = standard_library_key() if is_of_python else f"{name}-{about['split']}"
    entry = read_entry(folder, key)
    if entry is None:
        if is_of_python:
            source = standard_library()
        else:
            source = hugging_face(name, about["path"], about["split"], about.get("config"), about.get("separator", ""))
        entry = write_entry(folder, key, source.chunks, source.origin)
    tokens_N = torch.from_file(str(folder / f"{key}.bin"), shared=False, size=entry.size_bytes, dtype=torch.uint8)
    return Corpus(name, tokens_N, entry.size_bytes, entry.sha256, entry.source)


@checked
def train_val_split(corpus: Corpus, val_fraction: Annotated[float, Range(gt=0, lt=1)] = 0.1) -> tuple[Corpus, Corpus]:
    """The corpus in two, without copying: all but its end to train on, the end to validate on.

    The end, not a random choice of sequences: neighbouring bytes resemble each other, and a validation set strewn
    among the training text would be partly known.
    """
    cut = round(corpus.size_bytes * (1 - val_fraction))
    return _part(corpus, "train", corpus.tokens[:cut]), _part(corpus, "val", corpus.tokens[cut:])


def _part(corpus: Corpus, name: str, tokens_N: Tensor) -> Corpus:
    return replace(corpus, name=f"{corpus.name}[{name}]", tokens=tokens_N, size_bytes=len(tokens_N))
