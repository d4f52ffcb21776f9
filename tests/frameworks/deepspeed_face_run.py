# msprobe's monitor manual under DeepSpeed, word for word but for the import; OUT/<case> gets the files.
"""deepspeed_face_run.py OUT CASE: CASE is a key of SNIPPETS. Losses and weights go to OUT/CASE.<rank>.pt."""

import json
import os
import pathlib
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import deepspeed
import torch
import torch.distributed as dist

import equality_gpt as gpt

IMPORT = "from trainmon.compat.msprobe.pytorch import TrainerMon\n"
# The quick start, with the values that the manual gives for DeepSpeed.
QUICK_START = """
monitor = TrainerMon(
    config_file_path="./monitor_config.json",
    params_have_main_grad=False,
)
monitor.set_monitor(
    model,
    grad_acc_steps=args.global_batch_size//args.data_parallel_size//args.micro_batch_size,
    optimizer=optimizer,
    dp_group=None,
    tp_group=None,
    start_iteration=0
)
"""
# "DeepSpeed and accelerate at the same time"; the manual leaves the other arguments to the reader.
ACCELERATE = """
model, optimizer = accelerator.prepare(model, optimizer)
monitor = TrainerMon(config_file_path="./monitor_config.json", params_have_main_grad=False)
monitor.set_monitor(model, grad_acc_steps=2, optimizer=optimizer.optimizer)
"""
GROUPS = """
monitor = TrainerMon(
    "./monitor_config.json",
    process_group=mpu.get_pipeline_model_parallel_group(),
    params_have_main_grad=False
)
monitor.set_monitor(model, grad_acc_steps=2, optimizer=optimizer, dp_group=mpu.get_data_parallel_group())
"""
SNIPPETS = {"quick": QUICK_START, "accelerate": ACCELERATE, "groups": GROUPS, "bare": ""}
CONFIG = {
    "targets": {},
    "wg_distribution": True,
    "param_distribution": True,
    "mv_distribution": True,
    "monitor_mbs_grad": True,
    "format": "csv",
    "ops": ["norm", "min", "max", "nans"],
    "ndigits": 12,
    "squash_name": False,
}


def main():
    out, case, stage = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    rank = gpt.begin()
    folder = out / case / f"at{rank}"
    folder.mkdir(parents=True)
    os.chdir(folder)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # asked for, though joined already
    os.environ["MONITOR_OUTPUT_DIR"] = str(out / case)
    pathlib.Path("monitor_config.json").write_text(json.dumps(CONFIG))
    deepspeed.init_distributed("gloo")
    model = gpt.make()
    inner = torch.optim.AdamW(model.parameters(), **gpt.ADAMW)
    config = {
        "train_micro_batch_size_per_gpu": gpt.BATCH,
        "gradient_accumulation_steps": gpt.MICRO_STEPS,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    space = {
        "model": model,
        "optimizer": inner,
        "args": types.SimpleNamespace(
            global_batch_size=8, data_parallel_size=gpt.RANKS, micro_batch_size=gpt.BATCH
        ),
        "mpu": types.SimpleNamespace(
            get_pipeline_model_parallel_group=lambda: dist.group.WORLD,
            get_data_parallel_group=lambda: dist.group.WORLD,
        ),
    }
    if case == "accelerate":
        from accelerate import Accelerator
        from accelerate.utils import DeepSpeedPlugin

        plugin = DeepSpeedPlugin(hf_ds_config=config)
        # cpu=True would leave DeepSpeed out.
        space["accelerator"] = Accelerator(deepspeed_plugin=plugin)
    else:
        engine, optimizer, *_ = deepspeed.initialize(model=model, optimizer=inner, config=config)
        space.update(model=engine, optimizer=optimizer)
    exec(IMPORT + SNIPPETS[case], space)
    engine, losses = space["model"], []
    for step in range(gpt.STEPS):
        for micro in range(gpt.MICRO_STEPS):
            ids, targets = gpt.batch(rank, step, micro)
            loss = gpt.loss_of(engine(ids), targets)
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
    if "monitor" in space:
        space["monitor"].stop()
    final = [p.detach().clone() for p in model.parameters()]
    torch.save({"losses": losses, "final": final}, out / f"{case}.{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
