"""Configuration of Sphinx: notebooks as executed, the theme Furo, nothing from another host."""

project = html_title = "lablib"
copyright = "The lablib contributors. Code: Apache License 2.0. Labs: CC BY 4.0"
smartquotes = False
extensions = ["myst_nb"]
exclude_patterns = ["_static"]
nb_execution_mode = "off"
nb_ipywidgets_js = {}
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]
html_theme = "furo"
html_static_path = ["_static"]
html_extra_path = ["extra"]
html_favicon = "_static/icon.svg"
html_css_files = ["figures.css", "book.css"]
html_js_files = ["book.js"]
html_copy_source = html_show_sourcelink = False
html_use_index = False
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
html_theme_options = {
    "navigation_with_keys": False,  # the arrow keys move controls, and figures that are wider than the page
    "dark_css_variables": {"color-background-primary": "#111111"},  # as lablib/figures/theme.py has it
}
