"""check_site.py FOLDER: a built site loads nothing from the network, and every link in it leads to a
file and to a place in it. Exits 1 and lists what is wrong."""

from __future__ import annotations

import pathlib
import re
import sys
import urllib.parse
from html.parser import HTMLParser

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    """What a page loads, where its links lead and which places it has."""

    def __init__(self, text: str):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes) -> None:
        given = dict(attributes)
        if place := given.get("id") or (tag == "a" and given.get("name")):
            self.places.add(place)
        if tag in LOADS and given.get(LOADS[tag]):
            self.loads.append(given[LOADS[tag]])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])


def is_outside(address: str) -> bool:
    return bool(re.match(r"(?:[a-z]+:)?//|(?:https?|ftp):", address))


def faults(folder: pathlib.Path) -> list[str]:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    found = [] if pages else [f"{folder}: no page"]
    for path, page in pages.items():
        name = path.relative_to(folder)
        found += [f"{name}: loads {one}" for one in page.loads if is_outside(one)]
        for link in page.links + page.loads:
            if re.match(r"[a-z]+:|//", link):
                continue
            file, anchor = map(urllib.parse.unquote, urllib.parse.urldefrag(link))
            file = file.split("?")[0]
            there = (path.parent / file).resolve() if file else path
            if not there.is_file():
                found.append(f"{name}: link to {link}: there is no such file")
            elif anchor and there in pages and anchor not in pages[there].places:
                found.append(f"{name}: link to {link}: there is no such place")
    for path in folder.rglob("*.css"):
        for address in re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")\s]+)", path.read_text()):
            if is_outside(address):
                found.append(f"{path.relative_to(folder)}: loads {address}")
    return found


if __name__ == "__main__":
    wrong = faults(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(wrong) or "site: every link leads somewhere, nothing is loaded from elsewhere")
    sys.exit(1 if wrong else 0)
