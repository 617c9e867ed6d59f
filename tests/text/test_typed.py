"""Numbers and names as they are typed: units, prefixes, lists; other text is not read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.text.typed import read_names, read_numbers

NUMBERS = st.floats(-1e9, 1e9).map(lambda value: float(f"{round(value, 3):.6g}"))
UNITS = st.sampled_from(["MB", "s", "\N{MICRO SIGN}s", "%", "ranks", "times", "count", "nats"])


@given(numbers=st.lists(NUMBERS, min_size=1, max_size=5), unit=UNITS, is_said=st.booleans(), data=st.data())
def test_numbers_are_read_with_and_without_their_unit_in_any_list(numbers, unit: str, is_said: bool, data):
    separator = data.draw(st.sampled_from([",", ", ", ";", " and ", " , "]))
    ending = f" {unit}" if is_said and unit != "count" else ""
    typed = separator.join(f"{number:.6g}{ending}" for number in numbers)
    opened, closed = data.draw(st.sampled_from([("", ""), ("[", "]"), (" (", ") ")]))
    assert read_numbers(f"{opened}{typed}{closed}", unit, len(numbers)) == pytest.approx(numbers)


@pytest.mark.parametrize(
    "typed",
    ["0.5 GB = 500 MB", "12mb = 12 MB", "3 ms = 3000 us", "1,024 = 1024 ranks", "1 rank = 1 ranks", "30% = 0.3 times"]
    + ["2x = 2 times", "\N{MINUS SIGN}.5 = -0.5 nats", "2 \N{MICRO SIGN}s = 2 us", "7 = 7 %", "~5 = 5 count"],
)
def test_prefixes_thousands_shares_and_signs_are_read(typed: str):
    text, _, read = typed.partition(" = ")
    number, unit = read.split()
    assert read_numbers(text, unit, 1) == pytest.approx([float(number)])


@given(text=st.text(), unit=UNITS, count=st.integers(1, 4))
def test_any_text_is_read_as_so_many_numbers_or_not_at_all(text: str, unit: str, count: int):
    numbers = read_numbers(text, unit, count)
    assert numbers is None or len(numbers) == count


@pytest.mark.parametrize(
    "text", ["", "apples", "12 apples", "12 GB/s", "1/0", "1e999", "nan", "inf", "1.2.3", "None", "30%"]
)
def test_other_text_and_other_units_are_no_numbers(text: str):
    assert read_numbers(text, "MB") is None


def test_names_are_compared_in_small_letters():
    assert read_names('["ZB-H1", "GPipe"]') == read_names("zb_h1 and gpipe") == ["zb h1", "gpipe"]
