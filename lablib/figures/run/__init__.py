"""Figures of a run: timeline, memory, traffic, waits, roofline, predicted next to measured."""
