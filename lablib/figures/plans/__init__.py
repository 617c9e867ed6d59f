"""Figures of predictions: plans, pipelines, networks, collectives, validation."""
