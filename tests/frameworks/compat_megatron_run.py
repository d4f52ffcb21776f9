# The Megatron examples of msprobe's manual, but for the import, in a training of two ranks.
"""compat_megatron_run.py OUT CASE: OUT/<rank>.pt holds the gradients of the model without wrappers."""

import os
import pathlib
import sys
import types

import megatron_case as case
import torch
import torch.distributed as dist

from trainmon.compat.msprobe.pytorch import TrainerMon

STEPS, MICROS = 2, 2
CASES = {
    "plain": {},
    "overlap": {"overlap": True},
    "distributed": {"distributed": True, "overlap": True},
    "bf16": {"bf16": True, "distributed": True},
    "chunks": {"overlap": True},
    "chained": {"distributed": True},
    "groups": {},
    "old": {"overlap": True},
}


def main():
    out, name = pathlib.Path(sys.argv[1]), sys.argv[2]
    rank = case.start()
    from megatron.core import parallel_state as mpu

    models = [case.gpt(seed) for seed in range(2 if name in ("chunks", "chained") else 1)]
    twins = [case.gpt(seed) for seed in range(len(models))]
    if name == "chained":
        from megatron.core.optimizer import ChainedOptimizer

        pairs = [case.wrap([model], **CASES[name]) for model in models]
        model = [chunk for chunks, _ in pairs for chunk in chunks]
        chain = [one for _, optimizer in pairs for one in optimizer.chained_optimizers]
        optimizer = ChainedOptimizer(chain)
    else:
        model, optimizer = case.wrap(models, **CASES[name])
    args = types.SimpleNamespace(global_batch_size=8, data_parallel_size=2, micro_batch_size=2)
    os.chdir(out)
    os.environ["MONITOR_OUTPUT_DIR"] = str(out / "monitor_output")

    if name == "old":
        monitor = TrainerMon(
            config_file_path="./monitor_config.json",
            params_have_main_grad=True,
            opt_ty=None,
        )
        monitor.set_wrapped_optimizer(optimizer)
        # 挂载监控对象
        monitor.monitor_gnorm_with_ad(
            model,
            grad_acc_steps=args.global_batch_size
            // args.data_parallel_size
            // args.micro_batch_size,
            optimizer=optimizer,
            dp_group=None,
            tp_group=None,
            start_iteration=0,
        )
    elif name == "groups":
        monitor = TrainerMon(
            "./monitor_config.json",
            process_group=mpu.get_pipeline_model_parallel_group(),
            params_have_main_grad=True,
        )
        monitor.set_monitor(
            model,
            grad_acc_steps=args.global_batch_size
            // args.data_parallel_size
            // args.micro_batch_size,
            optimizer=optimizer.optimizer,
            dp_group=mpu.get_data_parallel_group(),
            tp_group=mpu.get_tensor_model_parallel_group(),
            start_iteration=0,
        )
    else:
        monitor = TrainerMon(
            config_file_path="./monitor_config.json",
            params_have_main_grad=True,
        )
        # 挂载监控对象
        monitor.set_monitor(
            model,
            grad_acc_steps=args.global_batch_size
            // args.data_parallel_size
            // args.micro_batch_size,
            optimizer=optimizer,
            dp_group=None,
            tp_group=None,
            start_iteration=0,
        )
    truth, asked = [], []

    def each(step):
        reduced, unreduced = monitor.generate_wgrad_metrics()
        asked.append({tag: float(values["norm"]) for tag, values in reduced.items()})
        for chunk, (ddp, twin) in enumerate(zip(model, twins)):
            state = {n.replace("module.", ""): p.detach() for n, p in ddp.named_parameters()}
            twin.load_state_dict({n: p.float() for n, p in state.items()})
            local = case.gradients(twin, step, MICROS, rank)[-1]
            mean = {n: g.clone() for n, g in local.items()}
            for gradient in mean.values():
                dist.all_reduce(gradient)
                gradient /= 2
            truth.append({"chunk": chunk, "step": step, "local": local, "mean": mean})

    case.train(model, optimizer, STEPS, MICROS, rank, each)
    monitor.stop()
    for ddp in model:
        assert not any("start_grad_sync" in vars(group) for group in ddp.bucket_groups)
    torch.save({"truth": truth, "asked": asked}, out / f"{rank}.pt")
    case.end()


if __name__ == "__main__":
    main()
