# Rows of what modules are rather than of what they return: attention, spectra of weights, routers.
"""One forward hook per module. Which ones:

- attention: modules called something with attention or Attn, given queries and keys. These have four
  dimensions and floats, and are the first two arguments or under a name of QUERIES and KEYS.
- spectral: modules with a matrix `weight`, or else `wg`, that are no embedding.
- router: modules whose class is called a router or a gate. So are linear layers of a name in ROUTERS
  with fewer outputs than inputs, which the gates of a GLU have not.

Names asked for take the place of those marks, within what include and exclude leave. Values are read when the forward ends.
"""

from __future__ import annotations

import weakref

from torch import Tensor, nn

from trainmon.torch.features import eligible
from trainmon.torch.features.attention import LAYOUTS, attention_features, why_not
from trainmon.torch.features.choice import ATTENTION, KINDS, ROUTER, SPECTRAL, Choice
from trainmon.torch.features.routers import per_token_expert_entropy, router_weight_similarity
from trainmon.torch.features.spectral import spectral
from trainmon.torch.hooks.backward import IDLE, current_task
from trainmon.torch.hooks.dynamo import compiling
from trainmon.torch.hooks.hook import Hook
from trainmon.torch.hooks.unseen import unseen
from trainmon.torch.measuring.isolated import isolated
from trainmon.torch.measuring.isolated import why_not as why_not_here


class Watched:
    """One module: what is taken of it, its series, and where it was seen last."""

    __slots__ = ("name", "chunk", "attention", "spectral", "router", "outputs", "asked",
                 "arguments", "series", "frame", "calls", "window")  # fmt: skip

    def __init__(self, name: str, chunk: int):
        self.attention = self.spectral = self.router = self.outputs = False
        self.asked: set[str] = set()  # which of the four by name
        self.arguments: tuple = ()  # names of positional arguments
        self.frame, self.calls, self.window = None, 0, None
        self.rename(name, chunk)

    def rename(self, name: str, chunk: int) -> None:
        self.name, self.chunk = name, chunk
        self.series: dict[tuple, int] = {}  # by kind and element


class Features:
    """The part that reads them. `kinds` are those of KINDS that are wanted."""

    def __init__(self, adapter, part, kinds, choice: Choice):
        self.adapter, self.part, self.choice = adapter, part, choice
        self.kinds = KINDS.intersection(kinds)
        self.watched: dict[int, tuple] = {}  # id of module -> (reference to it, Watched)
        self.seen: set[str] = set()  # kinds that had a row

    # --- start -----------------------------------------------------------------------------------

    def install(self, name: str, module: nn.Module, chunk: int, handles) -> None:
        """Also again, when modules were put in or moved: what is hooked gets its new name."""
        known, watched = self.watched.get(id(module), (None, None))
        if known is not None and known() is module:
            if (watched.name, watched.chunk) != (name, chunk):
                watched.rename(name, chunk)
            return
        watched = self._watched(name, module, chunk)
        if watched is None:
            return
        self.watched[id(module)] = weakref.ref(module), watched
        hook = self.adapter.timed(AfterForward(self, watched))
        handles.hook(module, "register_forward_hook", hook, with_kwargs=True)

    def _watched(self, name: str, module: nn.Module, chunk: int) -> Watched | None:
        watched, choice = Watched(name, chunk), self.choice
        if choice.within is not None and not choice.within(chunk, name):
            return None
        for what, kinds, names, bears_marks in (
            ("attention", ATTENTION, choice.attention, eligible.looks_like_attention),
            ("spectral", SPECTRAL, choice.spectral, eligible.has_spectrum),
            ("router", ROUTER[:1], choice.router, eligible.looks_like_router),
            ("outputs", ROUTER[1:], choice.outputs or choice.router, eligible.looks_like_router),
        ):
            if self.kinds.isdisjoint(kinds):
                continue
            taken = bears_marks(name, module) if names is None else names(chunk, name)
            setattr(watched, what, taken)
            if taken and names is not None:
                watched.asked.add(what)
        if not (watched.attention or watched.spectral or watched.router or watched.outputs):
            return None
        if watched.attention:
            watched.arguments = eligible.positional(module)
        return watched

    def rows_per_step(self, modules: list[tuple], micro_steps: int) -> int:
        """About how many, of (chunk, name, module)."""
        rows = 0
        for chunk, name, module in modules:
            watched = self._watched(name, module, chunk)
            if watched is None:
                continue
            heads = eligible.attribute(
                module, "num_heads", "num_attention_heads", "n_heads", "heads"
            )
            heads = 1 if self.choice.first_only else heads if isinstance(heads, int) else 16
            if watched.attention:
                rows += len(self.kinds.intersection(ATTENTION)) * heads * micro_steps
            rows += watched.spectral * len(self.kinds.intersection(SPECTRAL))
            rows += watched.router + watched.outputs * micro_steps
        return rows

    def first_step_ended(self) -> None:
        """Says what gave nothing, now that all should have."""
        not_covered = self.adapter.coverage.not_covered
        never = [w.name or "model" for _, w in self.watched.values() if w.frame is None]
        if never:
            more = f" and {len(never) - 10} more" if len(never) > 10 else ""
            what = f"features of {', '.join(never[:10])}{more}"
            not_covered(what, "no call was seen in the first step: unused, or inside torch.compile")
        gave_none = self.kinds - self.seen
        has_routers = any(w.router or w.outputs for _, w in self.watched.values())
        if not has_routers and {"router", *ROUTER}.isdisjoint(self.adapter.config["kinds"]):
            gave_none -= set(ROUTER)  # "all" of a model without routers
        for kind in sorted(gave_none):
            not_covered(kind, "no module gave any in the first step")

    # --- forward ---------------------------------------------------------------------------------

    def left(self, watched: Watched, module: nn.Module, args: tuple, kwargs: dict, output) -> None:
        if current_task() != IDLE:  # recomputed: the first pass gave the rows
            return
        if why_not_here() is not None:  # as where what is computed would become part of a trace
            return
        frame = self.adapter.clock.frame or self.adapter.open_frame()
        if not frame.recording:
            return
        if watched.frame is not frame:
            watched.frame, watched.calls = frame, 0
        call = watched.calls
        watched.calls += 1
        with isolated():
            self._read(watched, module, args, kwargs, output, frame, call)

    def _read(self, watched, module, args, kwargs, output, frame, call: int) -> None:
        if watched.attention:
            self._attention(watched, module, args, kwargs, frame, call)
        if watched.window != frame.window:  # weights change only between windows
            watched.window = frame.window
            if watched.spectral:
                self._spectral(watched, module, frame, call)
            if watched.router:
                self._similarity(watched, module, frame, call)
        if watched.outputs:
            self._entropy(watched, output, frame, call)

    def _attention(self, watched, module, args, kwargs, frame, call) -> None:
        choice = self.choice
        given = {**dict(zip(watched.arguments, args)), **kwargs}
        query, key = eligible.queries_and_keys(args, given)
        why = "it is not given queries and keys"
        if query is not None:
            why = why_not(query, key, choice.layout)
        if why:
            self._nothing(watched, "attention", why)
            return
        causal, mask = eligible.causality(module, given)
        if choice.causal != "auto":
            causal = choice.causal == "yes"
        if not choice.masks:
            mask = None
        if mask is not None:
            mask = eligible.visible_keys(mask, query, key, choice.layout)
            if mask is None:
                # Without it the numbers would be wrong, so it is said of any module.
                what = f"attention {watched.name or 'model'}"
                self.adapter.coverage.not_covered(what, "its mask is of an unknown form")
                return
        if choice.first_only:
            first = (slice(0, 1), slice(0, 1))  # of batch and heads
            order = LAYOUTS[choice.layout]
            query, key = (x.permute(order)[first] for x in (query, key))
            mask = None if mask is None else mask[first]
        values = attention_features(
            query,
            key,
            layout="bhsd" if choice.first_only else choice.layout,
            causal=causal,
            scale=eligible.scale_of(module, given),
            mask=mask,
        )
        for kind, value in zip(ATTENTION, values):
            if kind in self.kinds:
                for head, tensor in enumerate(value.unbind(1)):
                    self._observe(watched, kind, f"head.{head}", tensor, frame, call)

    def _spectral(self, watched, module, frame, call) -> None:
        matrix = eligible.weight_of(module)
        if matrix is None:
            self._nothing(watched, "spectral", "its weight is no matrix that can be read")
            return
        rank, norm, _ = spectral(matrix)
        for kind, value in zip(SPECTRAL, (rank, norm)):
            if kind in self.kinds:
                self._observe(watched, kind, "", value, frame, call)

    def _similarity(self, watched, module, frame, call) -> None:
        matrix = eligible.router_weight_of(module)
        if matrix is None:
            self._nothing(watched, "router", "its weight is no matrix that can be read")
            return
        value = router_weight_similarity(matrix)
        self._observe(watched, "router_similarity", "", value, frame, call)

    def _entropy(self, watched, output, frame, call) -> None:
        if isinstance(output, (tuple, list)):
            output = next((item for item in output if isinstance(item, Tensor)), None)
        if not eligible.readable(output) or output.dim() < 2:
            self._nothing(watched, "outputs", "its output has no values per token and expert")
            return
        value = per_token_expert_entropy(output)
        self._observe(watched, "router_entropy", "", value, frame, call)

    def _nothing(self, watched: Watched, what: str, why: str) -> None:
        """Said of modules asked for; of others the marks were misleading."""
        if what in watched.asked:
            what = "router" if what == "outputs" else what
            self.adapter.coverage.not_covered(f"{what} {watched.name or 'model'}", why)

    def _observe(self, watched, kind, element, tensor, frame, call: int) -> None:
        adapter = self.adapter
        number = watched.series.get((kind, element))
        if number is None:
            number = adapter.activation_series(kind, watched.name, element, watched.chunk, tensor)
            watched.series[kind, element] = number
            self.seen.add(kind)
        adapter.row(number, tensor, frame.window, frame.accum, call, 0)


class AfterForward(Hook):
    __slots__ = ("features", "watched")

    def __init__(self, features, watched):
        self.features, self.watched = features, watched

    # Libraries that move hooks to another module register them again without with_kwargs.
    def __call__(self, module, args, *rest):  # kwargs and output, or output alone
        if compiling():
            return
        features = self.features
        if not (features.part.on and module.training and features.adapter.clock.recording):
            return
        try:
            kwargs = rest[0] if len(rest) > 1 else {}
            with unseen():
                features.left(self.watched, module, args, kwargs, rest[-1])
        except Exception as error:
            features.part.failed(error)
