"""Limits of the validation: cases where the planner is less certain than its small error suggests.

Each concerns a choice made with the rows themselves, or a figure from a single source. The page prints them below the
errors; tests/validation/test_doubts.py checks them against the planner. Those about mixtures of experts are separate,
as their rows are.
"""

DOUBTS = (
    "**The software is chosen by the source.** Rule C5 (`case.py`) reads a row's title, address, notes and date, and"
    " takes one of the generations of `lablib/plan/stack.py`. These records count the operations of the programs. But"
    " separate records for 2021 and 2022 were a decision made with these rows at hand, and leaving a source out of"
    " the fit does not test it. With the record of 2021 for all of Megatron before Hopper, `korthikanti22` is off by"
    " 10% instead of 4%; with the record of 2022, `megatron-sc21` by 6% instead of 2%.",
    "**Only one source determines `dispatch_s`.** The seconds in which the host starts an operator matter only if"
    " small models leave the device waiting: between 10 and 30 us no group except `vtrain-single` changes by as much"
    " as 0.1%. Fitted without vTrain it stays in the middle of its bounds, and the error of `vtrain` grows when it is"
    " left out. It is the host of that one machine.",
    "**Two sources determine `generation_share`:** `mpt` and `titan`, the only ones with flash attention older than"
    " their devices. FLOPs per joule of a generation of devices are determined by the sources that ran on it: for"
    " Blackwell these are `mbridge` and `simumax`.",
    "**Three facts were looked up because rows were off.** Two are in the sources: llm-foundry takes two metrics"
    " from the logits; torchtitan also keeps every second 8-bit product, and has compiled its loss since 2025. The"
    " third was measured by others: an old attention kernel gains nothing from wide heads (`machine.py`). But the"
    " errors of these rows, with small models, long sequences and FP8, were the reason to look.",
    "**Open settings of a row are assumed to be tuned** (rule C11): the fastest choice that the planner knows. If"
    " the publishers chose otherwise, that is an error in reading the row, not in the physics, or it hides an error"
    " in the physics.",
)

MIXTURE_DOUBTS = (
    "**These rows showed which physics was missing.** No constant was fitted to them. But with exchanges in rounds"
    " of ranks, each sent k times and never hidden, the mean error was 25%; the exchanges of real programs"
    " (`lablib/plan/layer/dispatch.py`) were modelled after that.",
    "**Runs in one CUDA graph are predicted within 10%, others are slower than predicted.** The likely cause is the"
    " host, which starts a product for each expert and waits at every layer for the number of arriving tokens"
    " (dropless routing): the planner has one generation of Megatron-Core, which does neither.",
    "**GPT-OSS is predicted too fast by a quarter.** Its attention has learned sinks and windows of 128 tokens in every"
    " second layer; kernels for the first were slow or missing in these containers (the source says so of one of"
    " them). The planner prices plain attention over the whole sequence.",
    "**Recomputation of single modules is not counted** (in MLA the products from the latents, norms, activations),"
    " nor the head's second pass for a second token ahead: together some percent of DeepSeek-V3's step.",
    "**Routing is forced to be even** in NVIDIA's summary; in the model zoo's table for H100s that is not stated.",
)
