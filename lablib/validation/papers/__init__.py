"""Formulas as their papers and tools print them, to hold the planner against.

activations.py  Korthikanti et al., 2022: what a layer keeps
deepspeed.py    DeepSpeed's estimators
megatron.py     Narayanan et al., 2021: parameters and states
zero.py         Rajbhandari et al., 2019: states and traffic
"""
