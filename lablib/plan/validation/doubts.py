"""What the figures of the validation do not show: where the planner knows less than its small error says.

Each doubt is about something that the rows themselves chose, or that one source alone decides. The page prints them
below the errors; tests/plan/validation/test_doubts.py holds them against the planner.
"""

DOUBTS = (
    "**The software is chosen by the source.** Rule C5 (`case.py`) reads a row's title, address and date, and takes one"
    " of the generations of `lablib/plan/stack.py`. These records count what the programs do, but that there is one for"
    " 2021 and one for 2022 was decided with these rows at hand, and leaving a source out of the fit does not test it."
    " With the record of 2021 for all of Megatron before Hopper, `korthikanti22` is off by 8% instead of 3%; with"
    " that of 2022, `megatron-sc21` by 7% instead of 3%.",
    "**One source alone decides `dispatch_s`.** The seconds in which the host starts an operator show only where small"
    " models leave the device waiting: from 10 to 30 us no group but `vtrain-single` moves by as much as 0.1%. Fitted"
    " without vTrain it stays in the middle of its bounds, and `vtrain` loses by that when it is left out. It is the"
    " host of that one machine.",
    "**Two sources decide `generation_share`:** `mpt` and `titan`, the only ones with flash attention older than their"
    " devices. FLOPs a joule are decided for each generation of devices by the sources that ran on it: for Blackwell"
    " these are `mbridge` and `simumax`.",
    "**What a row leaves open is taken to be tuned** (rule C11): the fastest choice that the planner knows. Where the"
    " publishers chose otherwise, that is an error of the planner's reading and not of its physics, or hides one.",
)
