"""Pages without installation: the site of the course, and the planner in a browser, by Pyodide, as static files.

book/         the site: labs as executed, techniques, guides; the planner is a part of it

settings.py   the controls of the page as arguments of `predict`
answers.py    a prediction as JSON
pipelines.py  the pipeline of the plan, or of a free choice, simulated
searches.py   a search in slices, so that the page can show its progress and end it
build.py      the folder: page, Pyodide, planner
pyodide.py    the files of Pyodide, from a folder or from npm
page/         HTML, CSS and JavaScript: page.js draws, worker.js runs Python

settings, answers, pipelines and searches also run in the browser, on the standard library and the planner alone.
"""
