"""terminal_picture.py FILE.svg < TEXT: a picture of a terminal that shows TEXT.

The commands (lines after "$ ") and the line of the finding stand out. Makes docs/demo.svg:

    make demo | sed -n '/^\\$ trainmon first-bad/,$p' | python scripts/terminal_picture.py docs/demo.svg
"""

from __future__ import annotations

import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN = 7.85, 19, 18  # pixels of a character, of a line, around the text
NO_BREAK = "\u00a0"  # a space that SVG does not join with its neighbours
COLOURS = {
    "$ ": "#7ee787",
    "first bad": "#ff7b72",
    "first wrong": "#ff7b72",
    ".venv/bin/": "#7ee787",
}


def picture(text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    width = round(max(map(len, lines)) * WIDTH + 2 * MARGIN)
    height = len(lines) * HEIGHT + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(text.strip())}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
        '<g font-family="DejaVu Sans Mono,Menlo,Consolas,monospace" font-size="13">',
    ]
    for place, line in enumerate(lines):
        colour = next((c for head, c in COLOURS.items() if line.startswith(head)), "#e6edf3")
        baseline = MARGIN + HEIGHT * place + 14
        # Every line has the width of its characters in whatever font is there.
        length = f' textLength="{len(line) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"'
        out.append(
            f'<text x="{MARGIN}" y="{baseline}" fill="{colour}"{length if line else ""}>'
            f"{escape(line).replace(' ', NO_BREAK)}</text>"
        )
    return "\n".join([*out, "</g>", "</svg>", ""])


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(picture(sys.stdin.read()), encoding="utf-8")
