"""Limits of the validation: cases where the planner is less certain than its small error suggests.

Each concerns a choice made with the rows themselves, or a figure from a single source. The page prints them below the
errors; tests/validation/test_doubts.py checks them against the planner. Those about mixtures of experts are separate,
as their rows are.
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
    "**Three facts were looked up because rows were off.** That llm-foundry takes two metrics from the logits, and that"
    " torchtitan keeps every second product of 8 bits too and has compiled its loss since 2025, stands in their"
    " sources; that an old attention kernel gains nothing from wide heads was measured by others (`machine.py`). But"
    " it was these rows that sent us looking, among small models, long sequences and FP8.",
    "**What a row leaves open is taken to be tuned** (rule C11): the fastest choice that the planner knows. Where the"
    " publishers chose otherwise, that is an error of the planner's reading and not of its physics, or hides one.",
)

MIXTURE_DOUBTS = (
    "**These rows have shown which physics was missing.** No constant was fitted to them, but exchanges in rounds of"
    " ranks, each sent k times and never hidden, missed them by 24% in the mean; what programs do instead"
    " (`lablib/plan/layer/dispatch.py`) was written down after that was seen.",
    "**Runs in one CUDA graph are met within 10%, others are slower than predicted.** The likely cause is the host,"
    " which starts a product for each expert and waits at every layer for the number of tokens that arrive (dropless"
    " routing): the planner has one generation of Megatron-Core, which does neither.",
    "**GPT-OSS is predicted too fast by a quarter.** Its attention has learned sinks and windows of 128 tokens in every"
    " second layer; kernels for the first were slow or missing in these containers (the source says so of one of"
    " them). The planner prices plain attention over the whole sequence.",
    "**What single modules recompute is not counted** (of MLA its products from the latents, norms, activations), nor"
    " the head's second pass for a second token ahead: together some percent of DeepSeek-V3's step.",
    "**Routing is forced to be even** in NVIDIA's summary; in the model zoo's table for H100s that is not stated.",
)
