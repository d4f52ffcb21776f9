# Names of parameters and modules as text.
from __future__ import annotations

from collections.abc import Iterable


def as_text(name: str) -> str:
    """A name as the core takes it: lone surrogates, which are not UTF-8, are written out."""
    return name.encode("utf-8", "backslashreplace").decode()


def listed(names: Iterable[str]) -> str:
    names = list(names)
    text = ", ".join(name or "model" for name in names[:10])
    return f"{text} and {len(names) - 10} more" if len(names) > 10 else text
