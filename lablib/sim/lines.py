"""The line of the program behind every operator, cached for speed.

`program_line` (source.py) walks frames and looks at file names, which is too slow for ten thousand operators. Here the
text of each line is built once. In backward the walk ends at the line that called `backward()`; it is found once per
backward, as the frames below the engine's call do not change until it ends.
"""

import sys
from types import CodeType, FrameType

from lablib.sim.source import Code, ProgramLine, code_of
from lablib.torch_compat import run_backward_in_graph

_ENGINE = run_backward_in_graph.__code__


class Backward:
    """The backward pass that a rank is in.

    Attributes:
        graph_task: torch's number of it; -1: none.
        line: the line of the program that called it; "": not known yet.
    """

    __slots__ = ("graph_task", "line")

    def __init__(self, graph_task: int):
        self.graph_task, self.line = graph_task, ""


class Lines:
    """The lines of one run, shared by its ranks."""

    def __init__(self) -> None:
        # By code object and instruction. The code objects are kept so that their ids are not reused.
        self._texts: dict[tuple[int, int], tuple[str, CodeType]] = {}
        self._files: dict[str, Code] = {}

    def here(self, backward: Backward) -> str:
        """ "train.py:12: loss = model(x)", the innermost line of the program; lablib's only if there is none.

        `backward`: the current one; its line is set here.
        """
        frame: FrameType | None = sys._getframe(1)
        inside_library, is_below, files, other, call = None, False, self._files, Code.OTHER, _ENGINE
        while frame is not None:
            code = frame.f_code
            kind = files.get(code.co_filename) or self._file(code.co_filename)
            if kind is not other:
                if kind is Code.PROGRAM:
                    line = self._text(frame)
                    if is_below:
                        backward.line = line
                    return line
                if kind is Code.BOTTOM:
                    break
                inside_library = inside_library or frame
            elif code is call and backward.graph_task != -1:  # the first such frame is the innermost backward's
                if backward.line:
                    return backward.line
                is_below = True
            frame = frame.f_back
        return self._text(inside_library) if inside_library is not None else ""

    def _file(self, filename: str) -> Code:
        kind = self._files[filename] = code_of(filename)
        return kind

    def _text(self, frame: FrameType) -> str:
        # f_lasti is cheap; Python finds the line number by reading a table from the start.
        key = (id(frame.f_code), frame.f_lasti)
        if key not in self._texts:
            text = sys.intern(str(ProgramLine(frame.f_code.co_filename, frame.f_lineno)))
            self._texts[key] = text, frame.f_code
        return self._texts[key][0]
