"""Figures in the dark theme of JupyterLab: a style sheet with the theme's colours for the neutral parts of a figure.

Plotly takes no colours from a page, but the neutral colours of its SVG are the constants of style.py: paper, ink, grid,
idle time. The sheet selects elements by these, under the mark that JupyterLab sets on the page of a dark theme. The
colours of kinds of work are the same, except for two blues that are too dark on black. A heat map's colours are an
image, with texts and lines on it: the whole figure is inverted, and keeps its hues. On all other pages, and without
the sheet, a figure is a white card.
"""

from types import MappingProxyType

from lablib.figures.style import COMPUTE, FAINT_INK, GRID, INK, LOOKS, MEMORY_LOOKS, STATES, halo

PAGE = "#111111"  # JupyterLab's --jp-layout-color0 of the dark theme
# Light -> dark, for areas, for texts and for lines.
AREAS = MappingProxyType(
    {
        "#FFFFFF": PAGE,
        LOOKS["idle"].color: "#3A3A3A",
        "#000000": "#E6E6E6",  # the seventh of several series
        "#C8C8C8": PAGE,  # the veil over the later actions of a pipeline
        INK: "#E6E6E6",
        MEMORY_LOOKS["parameter"].color: "#6A6AB8",
        COMPUTE.color: "#4F74B3",
    }
)
TEXTS = MappingProxyType({INK: "#E6E6E6", FAINT_INK: "#B5B5B5"})
LINES = MappingProxyType(
    {INK: "#E6E6E6", FAINT_INK: "#B5B5B5", GRID: "#383838", "#C4C4C4": "#9A9A9A", "#000000": "#E6E6E6"}
)


_ALL = '[data-jp-theme-light="false"] :is(.js-plotly-plot, .lablib-static)'
_FIGURES = f"{_ALL}:not(:has(.hm, .lablib-heat))"
_HEAT_MAPS = f"{_ALL}:has(.hm, .lablib-heat)"


def browser_color(color: str) -> str:
    """A colour as browsers write it: #222222 is rgb(34, 34, 34)."""
    if len(color) == 7 and color.startswith("#"):
        return f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))})"
    return color


def _rules() -> list[str]:
    """For each neutral colour, a rule that replaces it on a page of the dark theme."""
    tags = {
        "fill": ((AREAS, ("rect", "path", "circle", "polygon")), (TEXTS, ("text", "tspan"))),
        "stroke": ((LINES, ("",)),),
    }
    found = [_rule(".main-svg", "background", "#FFFFFF", PAGE)]
    share = 1 - int(PAGE[1:3], 16) / 255  # white becomes the colour of the page
    found.append(f"{_HEAT_MAPS} {{filter: invert({share:.4f}) hue-rotate(180deg)}}")
    # Hatchings have their colours as attributes; the hatching of waiting is neutral.
    hatch = browser_color(STATES["waiting"].hatch)
    found.append(f'{_FIGURES} pattern rect[fill="{browser_color("#FFFFFF")}"] {{fill: {PAGE}}}')
    found.append(f'{_FIGURES} pattern path[stroke="{hatch}"] {{stroke: #FFFFFF; opacity: 0.75}}')
    # A shadow of the colour of paper or idle time keeps a text legible across lines.
    for light in ("#FFFFFF", LOOKS["idle"].color):
        element = f'text[style*="text-shadow: {browser_color(light)}"]'
        found.append(f"{_FIGURES} {element} {{text-shadow: {halo(AREAS[light])} !important}}")
    # Plotly does not convert the colours of a part of a text.
    found += [f'{_FIGURES} tspan[style*="fill:{light}"] {{fill: {dark} !important}}' for light, dark in TEXTS.items()]
    for what, groups in tags.items():
        for colors, names in groups:
            found += [_rule(name, what, light, dark) for light, dark in colors.items() for name in names]
    return found


def _rule(tag: str, what: str, light: str, dark: str) -> str:
    element = f'{tag}[style*="{what}: {browser_color(light)}"]'
    return f"{_FIGURES} {element} {{{what}: {dark} !important}}"


THEME_CSS = "\n".join(_rules())
