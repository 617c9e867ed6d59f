"""Figures of single techniques, most of them for one lab each."""
