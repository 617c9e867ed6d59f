"""The documents of a corpus: where one ends and the next begins, which its row of bytes does not say.

Each corpus has its own rule, in its catalogue (`documents`):

    modules              Python's standard library: each module, as long as its file
    <|endoftext|>        TinyStories: a mark after each story, which is in no document
    level-1 headings     WikiText: an article begins at a line " = Title = "; its sections at " = = Title = = "

Modules have a few hundred bytes, or hundreds of kilobytes. Such lengths, few long and many short, are what packing
(lablib/batches/packing.py) has to deal with. A token is a byte.

    long, in pieces:    a document of 10 tokens, blocks of 4:    4 + 4 + 2

Cost: reads the text once (modules: the files once more); the documents are views of the corpus and take no memory of
their own.
Shapes: n tokens of a document.
Source: the order in which `lablib.data.sources` joins the modules; the layouts of the published files
TinyStoriesV2-GPT4-train.txt (Eldan and Li, 2023, arXiv 2305.07759) and wiki.train.raw (Merity et al., 2016, arXiv
1609.07843).
Simplified: a line of an article that looks like a heading of level 1 begins another document.
"""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from jaxtyping import UInt8
from torch import Tensor

from lablib.data.sources import END_OF_TEXT, standard_library
from lablib.data.text import CORPORA, Corpus
from lablib.signature import Count, checked

_HEADING = re.compile(rb"^ = (?!= )[^\n]*(?<! =) = ?$", re.MULTILINE)


@checked
def documents(corpus: Corpus) -> list[UInt8[Tensor, " n"]]:
    """The documents of a whole corpus of the catalogue, in its order; those without text are left out.

    ValueError: a part of a corpus or another one, Python's files have changed since the corpus was made, or it has no
    mark between its documents.
    """
    if corpus.name not in CORPORA:
        raise ValueError(
            f"documents are known of a whole corpus of the catalogue ({', '.join(CORPORA)}): got {corpus.name!r}; "
            "try documents(load_corpus())."
        )
    rule = {"modules": _modules, "end of text": _between_marks, "headings": _from_headings}
    return [document for document in rule[CORPORA[corpus.name]["documents"]](corpus) if len(document)]


def _modules(corpus: Corpus) -> list[Tensor]:
    sizes = [len(chunk) for chunk in standard_library().chunks]
    if sum(sizes) != len(corpus):
        raise ValueError(
            f"the modules must add up to the corpus: they have {sum(sizes)} bytes, and the corpus {len(corpus)}, as "
            "Python's files have changed since it was made; remove it from cache_folder() and load it again."
        )
    ends = list(accumulate(sizes))
    # The last byte of each is the newline between it and the next.
    return [corpus.tokens[end - size : end - 1] for end, size in zip(ends, sizes, strict=True)]


def _between_marks(corpus: Corpus) -> list[Tensor]:
    marks = [found.span() for found in re.finditer(re.escape(END_OF_TEXT.encode()), _view(corpus))]
    if not marks:
        raise ValueError(
            f"a mark {END_OF_TEXT.strip()!r} must end each document of {corpus.name!r}: there is none, as the corpus "
            "was loaded without marks; remove it from cache_folder() and load it again."
        )
    starts, ends = [0, *(end for _, end in marks)], [*(start for start, _ in marks), len(corpus)]
    return [corpus.tokens[start:end] for start, end in zip(starts, ends, strict=True)]


def _from_headings(corpus: Corpus) -> list[Tensor]:
    starts = [found.start() for found in _HEADING.finditer(_view(corpus))]
    return [corpus.tokens[start:end] for start, end in pairwise(sorted({0, *starts, len(corpus)}))]


def _view(corpus: Corpus) -> memoryview:
    return corpus.tokens.numpy().data


@checked
def cut_documents(documents: Sequence[Tensor], max_length: Count) -> list[Tensor]:
    """Documents in pieces of `max_length` tokens, the last shorter; empty ones are left out. ValueError: not [n]."""
    for index, document in enumerate(documents):
        if document.ndim != 1:
            raise ValueError(f"a document is one row of tokens: document {index} has shape {tuple(document.shape)}.")
    return [piece for document in documents if len(document) for piece in torch.split(document, max_length)]
