"""Byte-pair encoding, the naive trainer: count all pairs of neighbours, join the most frequent pair, and count again.

Source: Sennrich, Haddow, Birch, 2016, arXiv 1508.07909, section 3.2 and algorithm 1; on bytes: Radford et al., GPT-2,
2019, section 2.2.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tokenizers import pre_tokenizers


def byte_letters() -> dict[str, int]:
    """The letter by which GPT-2's vocabulary files write each byte: itself if printable, otherwise from U+0100 on.

    Radford et al. 2019, `bytes_to_unicode` of their code: a file of tokens stays readable text.
    """
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}


def split_into_pieces(text: str) -> list[bytes]:
    """The pieces of a text that no merge crosses: words with the space before them, numbers, punctuation."""
    letters = byte_letters()
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    return [bytes(letters[letter] for letter in piece) for piece, _ in cut]


def train_bpe(pieces: Mapping[bytes, int], vocab_size: int, first_tokens: Sequence[bytes] = ()) -> list[tuple]:
    """The merges in order; `first_tokens`, the 256 bytes by their numbers, decides between equal counts."""
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


def encode_bpe(piece: bytes, merges: Iterable[tuple]) -> list[bytes]:
    tokens = [bytes([byte]) for byte in piece]
    for pair in merges:
        tokens = merge_pair(tokens, pair)
    return tokens


def merge_pair(tokens: Sequence[bytes], pair: tuple) -> list[bytes]:
    """The tokens with every occurrence of the pair joined, from the left."""
    joined: list[bytes] = []
    place = 0
    while place < len(tokens):
        found = tuple(tokens[place : place + 2]) == pair
        joined.append(pair[0] + pair[1] if found else tokens[place])
        place += 2 if found else 1
    return joined
