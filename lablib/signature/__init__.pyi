# ruff: noqa: I001  (in reading order)
from .bounds import (
    Bound as Bound,
    Count as Count,
    Finite as Finite,
    Fraction as Fraction,
    FractionBelow1 as FractionBelow1,
    NonEmpty as NonEmpty,
    NonNegative as NonNegative,
    NonNegativeInt as NonNegativeInt,
    OneOf as OneOf,
    Positive as Positive,
    PositiveFraction as PositiveFraction,
    PowerOfTwo as PowerOfTwo,
    Range as Range,
)
from .call import (
    Checked as Checked,
    WrongType as WrongType,
    check_arguments as check_arguments,
    check_fields as check_fields,
    check_type as check_type,
    check_types as check_types,
    checked as checked,
    whole_number as whole_number,
)
from .fits import MAX_WHOLE as MAX_WHOLE, fits as fits
from .hints import hints_of as hints_of
from .words import in_words as in_words, shown as shown
