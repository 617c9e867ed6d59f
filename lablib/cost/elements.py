"""Time of a function that a CPU computes element by element.

    time = max( bytes / bandwidth, elements * seconds per element )

On a GPU the time of exponentials and the like is hidden behind the bytes, and only the first term counts. A CPU core
computes an exponential in some twenty instructions: GELU in its tanh form takes ten times as long as its bytes on the
machine of the first measurement. The time depends on a library's loop as well as the hardware, so the seconds are
measured for each operator (`lab calibrate`). A device without figures, as all in the catalogue, is limited by its
bytes.

Legend: elements of the operator's largest operand or result; for attention the elements of its scores, B H T_q T_k.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009: section 4, a ceiling below the peak for code that
is not multiply-adds.
Simplified: one figure for all dtypes and sizes; operators that were not measured are priced by their bytes.
"""

from lablib.cost.arrays import Numbers
from lablib.hardware.device import Device


def function_time_s(operator: str, elements: Numbers, device: Device) -> Numbers:
    """Seconds of the arithmetic of `elements` elements: 0 for an operator without a figure on the device.

    `operator`: its name in torch, without "aten::", followed by the argument that chooses the function: "gelu tanh".
    """
    return elements * device.element_s.get(operator, 0.0)
