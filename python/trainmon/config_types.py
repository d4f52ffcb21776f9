# The configuration keys as types, for editors and type checkers. scripts/configuration_doc.py writes
# this file from the table in src/config/key_table.cpp; a test compares the two.
from __future__ import annotations

from collections.abc import Collection
from os import PathLike
from typing import Literal, TypedDict


class OtherKeys(TypedDict, total=False):
    """The keyword arguments of trainmon.watch that have no parameter of their own."""

    checks: bool
    """also watch grads, weights, moments and update, and record of each what trainmon diagnose compares: a fingerprint and a sketch"""
    include: str | Collection[str]
    """name patterns to watch; empty: every name"""
    exclude: str | Collection[str]
    """name patterns not to watch"""
    start_step: int
    """first step that may be recorded"""
    stop_step: int | None
    """first step no longer recorded, greater than start_step; null: none"""
    ranks: int | Collection[int]
    """ranks that record; empty: all"""
    sinks: str | Collection[str]
    """where rows go; empty: only to latest() and alerts; memory is for programs in C++"""
    eps: float
    """an element counts as zero when |x| < eps"""
    threads: int
    """threads that measure one large tensor"""
    sample: Literal["", "1/2", "1/4", "1/8", "1/16", "1/32", "1/64", "1/128", "1/256"]
    """share of their blocks that is read of actv and actv_grad, at random places, for estimates; other kinds are read whole; empty: so are these"""
    reread: bool
    """whether a tensor is read for each module that returns it or is given it; false: once, while nothing that autograd counts has changed it"""
    inside_compiled: bool
    """whether activations inside torch.compile are read: the compiler then rounds at other places, which may change the last bits of the training"""
    canary_every: int
    """compute a canary in one step in this many: kinds canary_actv and canary_grad"""
    input_grads: bool
    """whether actv_grad includes the gradients of module inputs"""
    modules: Literal["auto", "all", "blocks"]
    """whose activations are read: of all modules, or of repeated blocks (layers of a transformer) alone; auto: all up to 500 modules, else blocks"""
    moments_at: Literal["after_step", "before_step"]
    """when optimizer state is read: after the step, or before it"""
    attention_modules: str | Collection[str]
    """modules given queries and keys, for the kinds of attention; empty: all that are"""
    attention_layout: Literal["bhsd", "bshd", "sbhd"]
    """dimensions of queries and keys: batch, heads, sequence, depth in this order"""
    attention_causal: Literal["auto", "yes", "no"]
    """whether a query sees no later key; auto: as the module says"""
    spectral_modules: str | Collection[str]
    """modules whose weight matrix the spectral kinds read; empty: all that have one"""
    router_modules: str | Collection[str]
    """expert routers, for the kinds of routers; empty: all that look like one"""
    collectives: Literal["functions", "all"]
    """what kind cc sees: functions of torch.distributed, or all (DDP's own, too; slower)"""
    collective_inputs: bool
    """whether kind cc also reads tensors before the call"""
    collective_callers: str | Collection[str]
    """regular expressions, one of which a frame "path[line] function" of the caller must match; empty: every call"""
    alert_deviation: float
    """alert when a value is off its running mean by more than this share; 0: never"""
    alert_limit: float
    """alert when a value's size exceeds this; 0: never"""
    alert_stats: str | Collection[str]
    """statistics that alert_deviation and alert_limit look at"""
    alert_warmup: int
    """values of a series before one can deviate from their mean"""
    grad_acc_steps: int | None
    """backwards per step, where fixed and known; null: unknown"""
    start_iteration: int | None
    """step number of the first window; null: the optimizer's own, else 0"""
    clock: int
    """index of the optimizer whose steps activations follow"""
    backend: Literal["auto", "ops"]
    """how tensors are measured: auto (by device) or ops (framework operations)"""
    queue_mb: float
    """limit of what waits for the writer, in MB"""
    overflow: Literal["drop_newest", "drop_oldest", "block"]
    """what a full queue does"""
    flush_seconds: float
    """at most this much is lost when the process is killed"""
    stop_timeout_seconds: float
    """longest time stop() may take"""
    device_timeout_seconds: float
    """after this long a value still missing from a device is marked not ready"""
    segment_mb: float
    """size of one log file, in MB"""
    fsync: Literal["never", "segment", "flush"]
    """forces the log to the disk, so that it survives a power cut: never; segment: each full log file; flush: each flush, too"""
    retention_mb: float
    """most MB that the logs of a rank may take, of all its starts together: the oldest are deleted; 0: all are kept"""
    retention_days: float
    """log files of a rank last written before so many days are deleted, at a new file or within 10 minutes; 0: all are kept"""
    tensorboard_tags: int
    """curves that the sink tensorboard writes per rank; what is beyond is aggregated per layer"""
    latest_mb: float
    """limit of what latest() keeps, in MB"""
    max_series: int
    """series (a tensor of a kind) that a rank records; rows of further ones are counted as dropped"""
    max_scalars: int
    """names that log() takes; values of further ones are counted and not recorded"""
    recorder_mb: float
    """size of the flight recorder, a file of the last events that outlives the process, in MB; 0: none"""
    allow_volume: bool
    """permit an estimated volume over 50 GB a day"""


class ConfigKeys(OtherKeys, total=False):
    """Every key of a configuration."""

    kinds: str | Collection[str]
    """what to watch: kinds, or groups of them; all: every kind that needs no further choice"""
    every: int | None
    """record one step in this many; null: 1 up to four ranks, else 10"""
    budget: float | str | None
    """most of the step's time that monitoring may take: fewer steps are recorded to keep to it; null: no limit"""
    out: str | PathLike[str]
    """run directory; empty: trainmon_runs/<run id or "local">"""
