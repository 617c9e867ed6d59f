"""A package beside the script, with a registry that importing its modules fills."""

REGISTRY = {}
