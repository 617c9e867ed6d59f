"""Faults: slow ranks and links, kills, corrupted gradients.

rank         a rank that is slow, starts late, or dies
network      links that are slow or down
corruption   a gradient with a wrong element
inject       the faults of a run, and their effects in its report
"""
