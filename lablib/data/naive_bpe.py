"""Byte-pair encoding, the naive trainer: join the most frequent pair of neighbours, again and again.

Begin with single bytes. Count every pair of neighbours in the text, join the most frequent one into a new token
everywhere, and count again:

    l o w   l o w e r        lo x 2, ow x 2, we x 1, er x 1     -> lo
    lo w    lo w e r         low x 2, we x 1, er x 1            -> low

The text is first cut into pieces (words with the space before them); a token never crosses a border, so equal pieces
are counted once with their number. The list of merges, in order, is the tokenizer: text is encoded by the same merges.

Cost: V merges, each counts U bytes of unequal pieces again: O(V U). `tokenizer.py` uses a library that changes only the
counts that a merge touches.
Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units", 2016, arXiv 1508.07909,
section 3.2 and algorithm 1; on bytes: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, 2.2.
Simplified: slow. Of equally frequent pairs, the one with the earlier tokens is joined.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from lablib.signature import Range, checked

VocabSize = Annotated[int, Range(ge=256), "give a token for each of the 256 bytes and some merges: try vocab_size=1024"]


@checked
def train_bpe(pieces: Mapping[bytes, int], vocab_size: VocabSize, first_tokens: Sequence[bytes] = ()) -> list[tuple]:
    """The merges, pairs of tokens (each bytes), in order.

    Arguments:
        pieces: how often each piece of text occurs. No merge crosses the border of a piece.
        vocab_size: tokens, the 256 bytes among them; fewer when nothing is left to join.
        first_tokens: the 256 bytes (otherwise ValueError) in the order of their numbers, which decides between equal
            counts; () for 0 to 255.
    """
    if first_tokens and sorted(first_tokens) != [bytes([b]) for b in range(256)]:
        raise ValueError(
            f"first_tokens must be the 256 bytes, each once: got {len(first_tokens)} tokens; leave it out."
        )
    numbers = {token: number for number, token in enumerate(first_tokens or (bytes([b]) for b in range(256)))}
    words = {piece: [bytes([byte]) for byte in piece] for piece in pieces}
    merges: list[tuple] = []
    while len(numbers) < vocab_size:
        counts: Counter[tuple] = Counter()
        for piece, tokens in words.items():
            for pair in zip(tokens, tokens[1:], strict=False):
                counts[pair] += pieces[piece]
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], numbers[pair[0]], numbers[pair[1]]))
        merges.append(best)
        numbers.setdefault(best[0] + best[1], len(numbers))  # another merge may have made this token before
        words = {piece: merge_pair(tokens, best) for piece, tokens in words.items()}
    return merges


@checked
def encode_bpe(piece: bytes, merges: Iterable[tuple]) -> list[bytes]:
    """The tokens of a piece, by every merge in turn."""
    tokens = [bytes([byte]) for byte in piece]
    for pair in merges:
        tokens = merge_pair(tokens, pair)
    return tokens


def merge_pair(tokens: Sequence[bytes], pair: tuple) -> list[bytes]:
    """The tokens with every occurrence of the pair joined, from the left: a a a becomes aa a.

    >>> merge_pair([b"a", b"a", b"a", b"b"], (b"a", b"a"))
    [b'aa', b'a', b'b']
    """
    joined: list[bytes] = []
    place = 0
    while place < len(tokens):
        found = tuple(tokens[place : place + 2]) == pair
        joined.append(pair[0] + pair[1] if found else tokens[place])
        place += 2 if found else 1
    return joined
