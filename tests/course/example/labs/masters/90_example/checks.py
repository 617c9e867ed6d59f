"""Checks of the example lab."""

from collections.abc import Callable

from lablib.course import Expect, exercise


class Counted(list):
    """A list that counts how often somebody walks over it."""

    walks = 0

    def __iter__(self):
        self.walks += 1
        return super().__iter__()


@exercise("The mean", hints=["What is a mean?", "`sum` adds, `len` counts.", "Divide one by the other."])
def mean(expect: Expect, mean: Callable[[list[float]], float]) -> None:
    values = Counted([1.0, 2.0, 6.0])
    expect.close("the mean of 1, 2, 6", saw=mean(values), expected=3.0, rtol=1e-12)
    expect.budget("passes over the values", saw=values.walks, at_most=1, unit="passes")
    expect.close("the mean of halves", saw=mean([0.5, 0.0]), expected=0.25, rtol=1e-12)


@exercise("Bytes of ten float32", hints=["How many bits has a float32?"])
def size(expect: Expect, size_bytes: int) -> None:
    expect.equal("ten values of four bytes", saw=size_bytes, expected=40)
