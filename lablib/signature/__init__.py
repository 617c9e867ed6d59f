"""Check the arguments of a call and the fields of a record against their annotations, where users call.

    @checked
    def bubble(num_stages: Count, overlap: Fraction = 0.5) -> float: ...

    bubble("4")     WrongType: bubble: num_stages must be a whole number, 1 or more: got '4'; try num_stages=1
    bubble(0)       ValueError: bubble: num_stages must be a whole number, 1 or more: got 0; try num_stages=1
    bubble(4, 2)    ValueError: bubble: overlap must be a number, 0 to 1: got 2; try overlap=0.5

An annotation has a type and, in `Annotated`, the bounds of the value; rules across arguments stay in the function.

call      `checked` and `check_fields`: a wrong type or value is an error that has rule, value and remedy
bounds    `Count`, `NonNegative`, `Fraction`, `OneOf(...)`: ranges, choices and their names in a signature
fits      the test of an annotation, made once
words     annotations and values as text for messages
hints     the annotations of a function or class, resolved
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
