"""The line of the program behind every operator, cheaply enough to ask for each of them.

`program_line` (source.py) finds it by walking frames and looking at file names: right for an error, too slow for ten
thousand operators. Here the text of a line is put together once. In backward the walk ends at the line that called
`backward()`.
"""

import sys
from types import CodeType, FrameType

from lablib.sim.source import Code, Source, code_of


class Lines:
    """The lines of one run, shared by its ranks."""

    def __init__(self) -> None:
        # By code object and instruction. The objects are kept, so that no other gets their identity.
        self._texts: dict[tuple[int, int], tuple[str, CodeType]] = {}

    def here(self) -> str:
        """ "train.py:12: loss = model(x)", the innermost line of the program; lablib's only where it has none."""
        frame: FrameType | None = sys._getframe(1)
        inside_library, other = None, Code.OTHER
        while frame is not None:
            code = code_of(frame.f_code.co_filename)
            if code is not other:
                if code is Code.PROGRAM:
                    return self._text(frame)
                if code is Code.BOTTOM:
                    break
                inside_library = inside_library or frame
            frame = frame.f_back
        return self._text(inside_library) if inside_library is not None else ""

    def _text(self, frame: FrameType) -> str:
        # The instruction is known at once; Python finds its line by reading a table from the start.
        key = (id(frame.f_code), frame.f_lasti)
        if key not in self._texts:
            text = sys.intern(str(Source(frame.f_code.co_filename, frame.f_lineno)))
            self._texts[key] = text, frame.f_code
        return self._texts[key][0]
