"""Numbers and names as a person types them: "12 MB", "0.1 GB", "1,024", "30%", "zb-h1 and GPipe"."""

import re

from lablib.text.units import plural

_NUMBER = re.compile(r"[~+]?(-?(?:\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(?:\.\d*)?(?:e[+-]?\d{1,2})?)\s*([^\d.,]*)", re.I)
_PREFIXED = re.compile(r"([numkKMGTP]?)(B|B/s|s|FLOPs?|FLOP/s)")
_EXPONENTS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_LOOKALIKES = str.maketrans({0x2212: "-", 0xB5: "u", 0x3BC: "u", 0xD7: "x", 0x2248: "~"})  # as phones write - u x ~
_COMMA = r"\s*[,;]\s*|\s+and\s+"
_SEPARATORS = (_COMMA, r"\s*;\s*|,\s+|\s+and\s+", r"\s+")  # the second leaves 1,024 whole


def read_numbers(text: str, unit: str, count: int | None = None) -> list[float] | None:
    """The numbers in a text, in `unit`; None if it has other words, or not `count` numbers.

    >>> read_numbers("12 MB, 0.5 GB", "MB", 2), read_numbers("1,024", "ranks", 1), read_numbers("30%", "times", 1)
    ([12.0, 500.0], [1024.0], [0.3])
    """
    for separator in _SEPARATORS:
        numbers = [_number(part, unit) for part in re.split(separator, text.strip(" ()[]{}"))]
        read = [each for each in numbers if each is not None]
        if len(read) == len(numbers) and count in (None, len(read)):
            return read
    return None


def _number(text: str, unit: str) -> float | None:
    if not (match := _NUMBER.fullmatch(text.strip(" '\"").translate(_LOOKALIKES))):
        return None
    value, typed, asked = float(match[1].replace(",", "")), match[2].strip(), unit.translate(_LOOKALIKES)
    same = ("", asked.casefold(), plural(1, asked).removeprefix("1 ").casefold())
    if typed.casefold() in same or (typed, asked) == ("x", "times"):
        return value
    if typed == "%" and asked in ("times", "count"):
        return value / 100
    mine, wanted = _PREFIXED.fullmatch(typed), _PREFIXED.fullmatch(asked)
    if mine and wanted and mine[2] == wanted[2]:
        return value * 10.0 ** (_EXPONENTS[mine[1]] - _EXPONENTS[wanted[1]])
    return None


def read_names(text: str) -> list[str]:
    """The names in a text, in small letters and digits; commas or "and" separate them."""
    parts = re.split(_COMMA, text.strip(" ()[]{}"))
    return [re.sub(r"[\W_]+", " ", part.casefold()).strip() for part in parts]
