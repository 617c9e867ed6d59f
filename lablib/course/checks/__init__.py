"""Checks of exercises: run an answer, and report each broken rule.

exercise     exercises as a lab's checks.py declares them
check        checks and hints in a notebook
expect       the statements of a check: rule, observed, expected
rules        rules that many checks share
draw         random inputs of a check
comparison   the first difference of two values
formatting   values on one line
observe      arguments that a call changed or returned
operators    operators of a call: names, FLOPs, peak bytes
own_code     the rule that an answer is the learner's own code
own_copy     a copy of the learner's function per rank
own_modules  modules as a rank of a check sees them
trial        one trial of an answer
time_limit   its limit of CPU seconds
learner_code errors in a learner's code
last_call    the last call of an answer as a line to paste
result       the message of a check, a hint or a solution
printing     long texts and errors in a notebook
try_out      try a function before the check
proof        `lab prove`: solution, stub, wrong and right answers
"""
