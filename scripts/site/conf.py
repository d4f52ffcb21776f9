# Sphinx's settings for `make docs`; the sources are what stage.py leaves in build/docs-source.
import pathlib
import re

root = pathlib.Path(__file__).resolve().parents[2]
project = "trainmon"
release = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.M).group(1)
version = release
extensions = ["myst_parser"]
myst_heading_anchors = 4
root_doc = "index"
html_theme = "furo"
html_title = f"trainmon {release}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
pygments_style = "friendly"
smartquotes = False  # they make a dash of "--option"
