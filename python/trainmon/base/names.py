# Names of parameters and modules as text.
from __future__ import annotations

from collections.abc import Iterable

from trainmon.base.signals import pass_on


def as_text(name: str) -> str:
    """A name as the core takes it: lone surrogates, which are not UTF-8, are written out."""
    return name.encode("utf-8", "backslashreplace").decode()


def as_valid(name: str) -> str:
    """A name as readers give it, for libraries that take UTF-8 alone: its other bytes are written out."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def listed(names: Iterable[str]) -> str:
    names = list(names)
    text = ", ".join(name or "model" for name in names[:10])
    return f"{text} and {len(names) - 10} more" if len(names) > 10 else text


def attribute_of(given, name: str, otherwise=None):
    """An attribute of an object of the user's, which need not have it: whatever a property or a
    __getattr__ raises, the object has none."""
    try:
        return getattr(given, name, otherwise)
    except Exception as error:
        pass_on(error)
        return otherwise


def visible(text: str) -> str:
    """For a terminal: what is no printable character is shown as Python writes it. Names of a record may
    hold escape codes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
