# How many rows a step has, as the configuration and the model tell before there is one.
from __future__ import annotations

from trainmon.torch.features.choice import KINDS as FEATURES
from trainmon.torch.modules.buffers import tensors_of


def rows_per_step(adapter) -> int:
    """Of a step that is recorded, on this rank. Collectives and stacks are left out."""
    micro = adapter.config["grad_acc_steps"] or 1
    rows = sum(len(parameters) * times for _, parameters, times in parameter_rows(adapter))
    rows += len(adapter.roots) * micro * len({"input", "input_entropy"} & adapter.kinds)
    if "buffer" in adapter.kinds:
        rows += len(tensors_of(adapter))
    if per_module := 2 * len({"actv", "actv_grad"} & adapter.kinds):
        rows += len(adapter.selected_modules()) * per_module * micro
    rows += canary_rows(adapter) // adapter.config["canary_every"]
    return rows + sum(features_rows(adapter).values())


def canary_rows(adapter) -> int:
    """Of one canary."""
    rows = len(adapter.selected_modules()) if "canary_actv" in adapter.kinds else 0
    if "canary_grad" in adapter.kinds:
        rows += sum(p.selected and p.tensor.requires_grad for p in adapter.parameters)
    return rows


def parameter_rows(adapter) -> list[tuple[str, list, int]]:
    """(kind, parameters that have rows of it, rows of each in a step); "moments" is all state of
    the optimizers together, taken for two tensors."""
    micro = adapter.config["grad_acc_steps"] or 1
    selected = [p for p in adapter.parameters if p.selected]
    trained = [p for p in selected if p.tensor.requires_grad]
    table = (
        ("grad_unreduced", trained, micro),
        ("grad_micro", trained, micro),
        ("grad_reduced", trained, 1),
        ("mg_direction", trained, 1),
        ("update", trained, 1),
        ("update_ratio", trained, 2),  # histograms of two elements
        ("param_origin", selected, 1),
        ("param_updated", selected, 1),
    )
    rows = [line for line in table if line[0] in adapter.kinds]
    return rows + [("moments", trained, 2)] if adapter.wants_state else rows


def features_rows(adapter) -> dict[str, int]:
    """By kind of FEATURES."""
    if not (wanted := adapter.kinds & FEATURES):
        return {}
    from trainmon.torch.features.rows import Features  # few ask for them

    modules = adapter.selected_modules(everything=True)
    micro = adapter.config["grad_acc_steps"] or 1
    choice = adapter.selection.features
    return {
        kind: Features(adapter, None, {kind}, choice).rows_per_step(modules, micro)
        for kind in sorted(wanted)
    }
