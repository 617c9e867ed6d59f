"""A shuffle buffer: a nearly random order of samples that can only be read one after another.

Fill a buffer with the first b samples. Then give out one of them, chosen at random, put the next sample into its place,
and so on; at the end the rest, shuffled. A sample can come out at most b - 1 places early, and late without bound:

    place in 0 1 2 3 4 5 ...     b = 3: at first 0 1 2 are in the buffer
    out      1 0 4 3 2 6 ...     1 came out early, 2 had to wait

A sample waits for a number of draws that is geometric with chance 1 / b, which gives what its place moves by, d:

    E[d] = 0                             E[|d|] = 2 (b - 1) (1 - 1 / b)^(b - 1), about 0.74 b
    E[d^2] = b (b - 1)                   rank correlation of in and out: 1 - 6 b (b - 1) / N^2 for b << N
    P(neighbours stay neighbours) = 1 / b      for a uniform order 2 / N

A shuffle of all N by index: E[|d|] = (N^2 - 1) / (3 N), correlation 0. A buffer of b << N leaves sorted data (one class
after another) sorted: batches are of one class. Two ways help and cost no memory: shards in a random order, and several
shards open at once, read in turn (a bunched shuffle), before the buffer.

Cost: b samples of memory, and b reads before the first one comes out; the whole order by index: random reads.
Source: the buffers of tf.data (`Dataset.shuffle`) and webdataset (`shuffle`); geometric waiting times. Interleaving:
D. Murray et al., "tf.data: A Machine Learning Data Processing Framework", 2021, arXiv 2101.12127, section 3.
Simplified: webdataset can begin to give out before its buffer is full (`initial`).
"""

import random
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeVar

from lablib.signature import Range, checked

T = TypeVar("T")
BufferSize = Annotated[int, Range(ge=1, example=1000)]


@checked
def shuffle_buffer(samples: Iterable[T], size: BufferSize, seed: int = 0) -> Iterator[T]:
    """The samples in another order; reads `size` of them before it gives out the first, so 1 changes nothing."""
    draw, buffer = random.Random(seed), list[T]()
    for sample in samples:
        if len(buffer) < size:
            buffer.append(sample)
            continue
        place = draw.randrange(size)
        out, buffer[place] = buffer[place], sample
        yield out
    draw.shuffle(buffer)
    yield from buffer
