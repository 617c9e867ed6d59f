"""The line of the program behind every operator, cheaply enough to ask for each of them.

`program_line` (source.py) finds it by walking frames and looking at file names: right for an error, too slow for ten
thousand operators. Here what a code object is (program, torch, lablib) is looked up by its identity, and the text of a
line is put together once. In backward the walk ends at the line that called `backward()`.
"""

import sys
from types import CodeType, FrameType

from lablib.sim.source import Source, is_bottom, is_library, is_program

_SKIP, _PROGRAM, _LIBRARY, _BOTTOM = range(4)


class Lines:
    """The lines of one run, shared by its ranks."""

    def __init__(self) -> None:
        # The code objects are kept, so that no other gets their identity.
        self._kinds: dict[int, tuple[int, CodeType]] = {}
        self._texts: dict[tuple[int, int], str] = {}

    def here(self) -> str:
        """ "train.py:12: loss = model(x)", the innermost line of the program; lablib's only where it has none."""
        kinds = self._kinds
        frame: FrameType | None = sys._getframe(1)
        inside_library = None
        while frame is not None:
            known = kinds.get(id(frame.f_code))
            kind = known[0] if known is not None else self._learn(frame)
            if kind:
                if kind == _PROGRAM:
                    return self._text(frame)
                if kind == _BOTTOM:
                    break
                inside_library = inside_library or frame
            frame = frame.f_back
        return self._text(inside_library) if inside_library is not None else ""

    def _learn(self, frame: FrameType) -> int:
        if is_program(frame):
            kind = _PROGRAM
        elif is_library(frame):
            kind = _LIBRARY
        else:
            kind = _BOTTOM if is_bottom(frame) else _SKIP
        self._kinds[id(frame.f_code)] = kind, frame.f_code
        return kind

    def _text(self, frame: FrameType) -> str:
        # The instruction is known at once; Python finds its line by reading a table from the start.
        key = (id(frame.f_code), frame.f_lasti)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = sys.intern(str(Source(frame.f_code.co_filename, frame.f_lineno)))
        return text
