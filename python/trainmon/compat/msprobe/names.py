# msprobe's names of torch's parameters, modules and their tensors, and which of them its targets mean.
from __future__ import annotations

import torch
from torch import Tensor

from trainmon.compat.msprobe import config as fields
from trainmon.compat.msprobe.elements import Elements
from trainmon.compat.msprobe.short_names import Names, without_chunk
from trainmon.compat.msprobe.short_names import squash as squash
from trainmon.torch.features.choice import Choice
from trainmon.torch.modules.selection import Selection
from trainmon.torch.wrappers import module_names


class Targets(Elements, Selection):
    """What the fields targets, all_xy, squash_name and l2_targets choose."""

    names_as_compiled = False
    tensor = Tensor

    def __init__(self, config: dict, model, dp_group=None, tp_group=None):
        self.config = config
        self.roots = model
        self.wanted = config["targets"]
        self.parameter_names = [Names(config["squash_name"]) for _ in model]
        self.module_names = [Names(config["squash_name"]) for _ in model]
        self.raw_parameters: dict[int, str] = {}
        self.raw_modules: dict[int, str] = {}
        self.plain: list[dict[str, str]] = [{} for _ in model]  # full name -> without wrappers
        self.told: set[str] = set()
        self._walk()
        self.features = self._features()
        self.hides_reduced = dp_group is not None and torch.distributed.get_rank(dp_group) > 0
        self.is_second = tp_group is not None and torch.distributed.get_rank(tp_group) > 0

    def _walk(self) -> None:
        """Names as named_parameters() and named_modules() give them, wrappers included."""
        for chunk, root in enumerate(self.roots):
            for name, tensor in root.named_parameters():
                self.raw_parameters.setdefault(id(tensor), name)
                self.parameter_names[chunk].of(name)
            for name, module in root.named_modules():
                self.raw_modules.setdefault(id(module), name)
                self.module_names[chunk].of(name)
            for name, module in module_names.named(root):
                self.plain[chunk].setdefault(self.raw_modules.get(id(module), name), name)

    def model_changed(self) -> None:
        self.raw_parameters.clear()
        self.raw_modules.clear()
        self._walk()

    def _raw(self, known: dict[int, str], thing, name: str) -> str:
        if id(thing) not in known:
            self._walk()
        return known.get(id(thing), name)

    # --- parameters ------------------------------------------------------------------------------

    def parameter(self, parameter) -> bool:
        if not parameter.tensor.requires_grad:
            return False
        if not self.wanted:
            return True
        full = self._raw(self.raw_parameters, parameter.tensor, parameter.name)
        short = self.parameter_names[parameter.chunk].of(full)
        for target in self.wanted:
            wanted = without_chunk(target, parameter.chunk)
            for name in (full, short, parameter.name):
                if wanted is not None and (name == wanted or name.startswith(wanted + ".")):
                    return True
        return False

    def label(self, parameter) -> str:
        full = self._raw(self.raw_parameters, parameter.tensor, parameter.name)
        return self.parameter_names[parameter.chunk].of(full)

    def takes_parameter(self, parameter, kind: str) -> bool:
        """Reduced gradients that another rank of a group has, too, are left to its first rank."""
        if kind != "grad_reduced":
            return True
        if self.hides_reduced:
            return False
        return not self.is_second or bool(getattr(parameter.tensor, "tensor_model_parallel", False))

    # --- modules ---------------------------------------------------------------------------------

    def everything(self, root, chunk, seen, not_covered):
        for name, module in module_names.callable_ones(root, seen, not_covered, wrappers=True):
            full = self._raw(self.raw_modules, module, name)
            yield self.module_names[chunk].of(full), module

    def modules(self, root, chunk, seen, not_covered):
        for label, module in self.everything(root, chunk, seen, not_covered):
            if (
                self.config["all_xy"]
                or self.config["print_struct"]
                or not self.wanted
                or self._target(chunk, label, module) is not None
            ):
                yield label, module

    def _target(self, chunk: int, label: str, module) -> str | None:
        full = self.raw_modules.get(id(module), label)
        return self._matching(chunk, full, label, self.wanted)

    def _matching(self, chunk: int, full: str, label: str, targets) -> str | None:
        for target in targets:
            if without_chunk(target, chunk) in (full, label, self.plain[chunk].get(full)):
                return target
        return None

    # --- tensors of modules ----------------------------------------------------------------------

    def _wanted_of(self, watched) -> dict:
        for target, wanted in self.wanted.items():
            if wanted and self._is(target, watched):
                return wanted
        return {}

    def _is(self, target: str, watched) -> bool:
        name = without_chunk(target, watched.chunk)
        names = self.module_names[watched.chunk]
        if name is None:
            return False
        full = next((full for full, short in names.names.items() if short == watched.name), "")
        return name in (watched.name, full, self.plain[watched.chunk].get(full))

    # --- features --------------------------------------------------------------------------------

    def _features(self) -> Choice:
        targets = self.config["l2_targets"]

        def named(hook: str):
            wanted = targets.get(hook, [])

            def is_wanted(chunk: int, label: str) -> bool:
                names = self.module_names[chunk].names
                full = next((full for full, short in names.items() if short == label), label)
                return self._matching(chunk, full, label, wanted) is not None

            return is_wanted

        return Choice(
            attention=named("attention_hook"),
            spectral=named("linear_hook") if targets.get("linear_hook") else None,
            router=named("moe_router_weight_hook"),
            outputs=named("moe_router_logit_hook"),
            layout=fields.ORDERS[self.config["sa_order"]],
            causal="yes",
            masks=False,
            first_only=True,
        )

    def check(self, parameters, roots, not_covered) -> None:
        for target in self.wanted:
            names = [
                name
                for chunk in range(len(self.roots))
                for owner in (self.parameter_names[chunk], self.module_names[chunk])
                for full, short in owner.names.items()
                for name in (full, short, self.plain[chunk].get(full, full))
                if without_chunk(target, chunk) is not None
            ]
            wanted = {without_chunk(target, chunk) for chunk in range(len(self.roots))}
            if not any(n == w or n.startswith(f"{w}.") for n in names for w in wanted if w):
                not_covered(f"target {target!r}", "no parameter or module has such a name")
                self._say(f"target {target!r} is the name of no parameter or module")
        for hook, targets in self.config["l2_targets"].items():
            for target in targets if self.config["recording_l2_features"] else ():
                if not any(
                    self._matching(chunk, full, short, [target]) is not None
                    for chunk, names in enumerate(self.module_names)
                    for full, short in names.names.items()
                ):
                    not_covered(f"{hook} {target!r}", "no module has such a name")
                    self._say(f"{hook}: {target!r} is the name of no module")
