"""The site of the course: every lab as executed, a page per technique, guides and figures, as static files.

build        all of it into one folder, with the page of the planner in planner/
executed     the labs, executed as they are handed out
lab_pages    an executed lab as a page: answers folded, solutions left out
figures      a figure as SVG that turns interactive, and an exploration with controls
docstrings   a docstring as Markdown
techniques   a page per file of the technique packages
pages        start page, gallery, guides
sphinx/      configuration of Sphinx, the page that leads to the planner, style sheet and script

Sphinx, myst-nb and the theme Furo make the pages; they are the extra `site` of pyproject.toml.
"""
