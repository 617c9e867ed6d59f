"""The documents of a corpus: where one ends and the next begins, which its row of bytes does not say.

Python's standard library is a corpus of modules, each a document: a few hundred bytes, or hundreds of kilobytes. Such
lengths, few long and many short, are what packing (lablib/batches/packing.py) has to deal with. A token is a byte.

    long, in pieces:    a document of 10 tokens, blocks of 4:    4 + 4 + 2

Cost: reads the files once more; the documents are views of the corpus and take no memory of their own.
Shapes: n tokens of a document.
Source: the order in which `lablib.data.sources` joins the modules.
Simplified: other corpora do not keep their borders.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import UInt8
from torch import Tensor

from lablib.data.sources import standard_library
from lablib.data.text import Corpus
from lablib.signature import checked


@checked
def documents(corpus: Corpus) -> list[UInt8[Tensor, " n"]]:
    """The modules of the standard library, in the order of the corpus; those without text are left out.

    Arguments:
        corpus: `load_corpus("python-stdlib")`, whole.

    Raises:
        ValueError: another corpus or a part of one, or Python's files have changed since the corpus was made.
    """
    if corpus.name != "python-stdlib":
        raise ValueError(
            f"only the corpus 'python-stdlib', whole, knows its documents: got {corpus.name!r}; "
            "try documents(load_corpus())."
        )
    sizes = [len(chunk) for chunk in standard_library().chunks]
    if sum(sizes) != len(corpus):
        raise ValueError(
            f"the modules must add up to the corpus: they have {sum(sizes)} bytes, and the corpus {len(corpus)}, as "
            "Python's files have changed since it was made; remove it from cache_folder() and load it again."
        )
    ends = list(accumulate(sizes))
    # The last byte of each is the newline between it and the next.
    return [corpus.tokens[end - size : end - 1] for end, size in zip(ends, sizes, strict=True) if size > 1]


@checked
def cut_documents(documents: Sequence[Tensor], max_length: int) -> list[Tensor]:
    """Documents of at most `max_length` tokens: a longer one in pieces, all but its last of that length.

    Arguments:
        documents: tokens of each, [n]; empty ones are left out.

    Raises:
        ValueError: `max_length` below 1, or a document that is not one row of tokens.
    """
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1 token: got {max_length}.")
    for index, document in enumerate(documents):
        if document.ndim != 1:
            raise ValueError(f"a document is one row of tokens: document {index} has shape {tuple(document.shape)}.")
    return [piece for document in documents if len(document) for piece in torch.split(document, max_length)]
