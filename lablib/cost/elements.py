"""What a function takes on a device that computes its elements one by one: a CPU.

    time = max( bytes / bandwidth, elements * seconds an element )

On a GPU exponentials and the like hide behind the bytes, and only the first term counts. A core of a CPU has to work an
exponential out in some twenty instructions: GELU in its tanh form takes ten times as long as its bytes on the machine
where this was first measured. How long a library's loop takes is no property of the hardware alone, so the seconds are
measured for each operator (`lab calibrate`). A device that states none, as every one of the catalogue, is limited by
its bytes.

Legend: elements are those of the operator's largest operand or result, for attention its scores, B H T_q T_k.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009: section 4, a ceiling below the peak for code that
is not multiply-adds.
Simplified: one figure for all dtypes and sizes; operators that were not measured are priced by their bytes.
"""

from lablib.cost.arrays import Numbers
from lablib.hardware.device import Device


def function_time_s(operator: str, elements: Numbers, device: Device) -> Numbers:
    """Seconds of the arithmetic of `elements` elements: 0 for an operator of which the device states none.

    Arguments:
        operator: its name in torch, without "aten::", and after it what chooses the function: "gelu tanh".
        elements: a whole number, or an array of them.
        device: where.
    """
    return elements * device.element_s.get(operator, 0.0)
