"""Formulas as printed in papers and tools, to compare the planner with.

activations.py  Korthikanti et al., 2022: activations kept per layer
deepspeed.py    DeepSpeed's estimators
megatron.py     Narayanan et al., 2021: parameters and states
zero.py         Rajbhandari et al., 2019: states and traffic
"""
