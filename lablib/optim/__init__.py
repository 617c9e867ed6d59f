"""Optimizers: what each keeps, and its update as a formula. Read `adamw.py` first.

base        what all share: groups, closures, state that is checked, counted and loaded
foreach     one operator over a list of tensors
adamw       two means for each number, and decoupled decay
lion        the sign of one mean
"""
