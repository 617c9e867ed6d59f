"""Answers of the page: a prediction as JSON, in seconds and bytes, or the reason against the plan."""

from collections.abc import Callable
from typing import Any

from lablib.plan.memory import CATEGORIES
from lablib.plan.predict import predict
from lablib.plan.prediction import Prediction
from lablib.site.settings import Settings, arguments, model_of, number

Answer = dict[str, Any]


def answered(question: Callable[[Settings], Answer], settings: Settings) -> Answer:
    """The answer; for a refused question its reason: {"refusal": rule, value and remedy}."""
    try:
        return question(settings)
    except ValueError as error:
        return {"refusal": str(error)}


def prediction(settings: Settings) -> Answer:
    """A prediction with the parts of its step, its memory by stage, and the training of so many tokens.

    Raises ValueError for settings that are no plan, and for a plan that breaks a rule.
    """
    tokens, price = number(settings, "tokens"), number(settings, "price")
    found = predict(**arguments(settings))
    return {
        "sentence": found.sentence(),
        "remarks": [found.evidence_sentence(), *model_of(settings).sentences(), *found.notes],
        "fits": found.fits,
        "is_tight": found.is_tight,
        "gpus": found.num_gpus,
        "software": str(found.software),
        "step_time_s": found.step_time_s,
        "tokens_per_s": found.tokens_per_s,
        "mfu": found.mfu,
        "parts": {name: time_s for name, time_s in found.parts.items() if abs(time_s) > 1e-9 * found.step_time_s},
        "communication": {name: list(times_s) for name, times_s in found.communication.items() if times_s[0]},
        "categories": list(CATEGORIES),
        "memory": [list(stage.values()) for stage in found.memory],
        "limit_bytes": found.memory_limit_bytes,
        "training": _training(found, tokens, price),
    }


def _training(found: Prediction, tokens: float, price: float) -> Answer:
    hours = found.gpu_hours(tokens)
    return {
        "days": hours / found.num_gpus / 24,
        "gpu_hours": hours,
        "energy_j": found.energy_j(tokens),
        "price": price * hours,
    }
