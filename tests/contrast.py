"""Contrast of two colours by the Web Content Accessibility Guidelines (WCAG) 2.1: text needs 4.5 to 1."""


def luminance(color: str) -> float:
    """Relative luminance of "#rrggbb", 0 (black) to 1 (white)."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """1 (the same) to 21 (black on white)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
