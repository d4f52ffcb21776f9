# The last line of a run: what was written and lost, what was found, and what to type next.
from __future__ import annotations

import json
import os
import shlex


def stop_line(core, health: dict, is_chosen: bool, directory: str) -> str:
    """`is_chosen`: the rank records."""
    tool, found = _next(core, health, is_chosen)
    text = _written_text(core, health)
    return f"{text}; {found}; next: trainmon {tool} {shell_word(directory)}"


def _written_text(core, health: dict) -> str:
    written = max((sink["rows_written"] for sink in health["sinks"]), default=0)
    deleted = max((sink["rows_deleted"] for sink in health["sinks"]), default=0)
    dropped = max((sum(sink["rows_dropped"].values()) for sink in health["sinks"]), default=0)
    text = f"{written} rows written"
    if deleted:
        text += f" ({deleted} of them deleted since by somebody)"
    if expired := max((sink["rows_expired"] for sink in health["sinks"]), default=0):
        text += f" ({expired} of them deleted to keep to retention_mb or retention_days)"
    text += f", {dropped} dropped"
    if dropped:
        reasons = {reason for sink in health["sinks"] for reason in sink["rows_dropped"]}
        text += f" ({', '.join(sorted(reasons))})"
    if left_out := sum(health["scalars_dropped"].values()):
        text += f", {left_out} logged values dropped ({', '.join(health['scalars_dropped'])})"
    if health["refused"]:
        text += f", {sum(health['refused'].values())} not measured"
    if health["parts_off"]:
        text += f", switched off: {', '.join(health['parts_off'])}"
    text += _budget_text(core)
    if copies := core.flight_copies():
        more = f" and {len(copies) - 1} more" if len(copies) > 1 else ""
        text += f"; flight recorder kept in {shell_word(copies[0])}{more}"
    return text


def _next(core, health: dict, is_chosen: bool) -> tuple[str, str]:
    """A command, and what was found."""
    if failed := core.failed_check():
        tool, found = "diagnose", failed
    elif health["alerts"]:
        has_rules = core.has_alert_rules()
        tool = "anomalies" if has_rules else "diagnose"
        what = "alerts" if has_rules else "non-finite findings"
        found = f"{health['alerts']} {what}"
    elif bad := core.bad_losses():
        tool, times = "diagnose", "time" if bad == 1 else "times"
        found = f"the logged loss was not finite {bad} {times}"
    elif health["rows_produced"] == 0 and is_chosen:
        tool, found = "doctor", "nothing was recorded"
    elif health["scalars_dropped"] or any(
        s["rows_deleted"] or any(s["rows_dropped"].values()) for s in health["sinks"]
    ):
        tool, found = "doctor", "nothing found in the rest"
    else:
        has_checks = core.failed_checks() is not None  # diagnose tells more than alerts do
        tool, found = ("diagnose", "no alert") if has_checks else ("top", "nothing found")
        if core.world_size > 1:  # this line is of one rank alone
            tool, found = "diagnose", f"{found} on rank 0 of {core.world_size}"
    if "log" not in (sink["name"] for sink in health["sinks"]):
        tool = "doctor"  # the others read the log
    return tool, found


def _budget_text(core) -> str:
    note = json.loads(core.budget() or "null")
    if note is None:
        return ""
    text = f"; budget {percent(note['budget'])}"
    if note["share"] is None:
        return f"{text}: too few steps to keep to it"
    part, of = note["kept"]
    of *= note["every"]
    which = "every step" if part == of else f"{part} of {of} steps"
    return f"{text}: {which} recorded, {percent(note['share'])} of the time"


def shell_word(path: str) -> str:
    """One word for a shell, which a terminal shows as it is."""
    if path.isprintable():
        return shlex.quote(path)
    plain = (
        chr(b) if 32 <= b < 127 and b not in b"'\\" else f"\\x{b:02x}" for b in os.fsencode(path)
    )
    return f"$'{''.join(plain)}'"


def percent(share: float) -> str:
    return f"{100 * share:.3g}%"
