# Calls collectives on two ranks, watched, and saves what each must have been given and have given.
"""collectives_run.py OUT CASE OPTIONS...: OUT/<rank>.pt holds {"expected": [(step, function, call, element, list
of tensors)], ...}. What is expected is computed from both ranks' data, without communication."""

import copy
import gc
import os
import pathlib
import sys
import time
import warnings
import weakref

import torch
import torch.distributed as dist
from torch import nn

import launch
import trainmon

RANK = int(os.environ["RANK"])
OTHER = 1 - RANK
c10d = dist.distributed_c10d


def of(rank, size=4, seed=0):
    """What a rank has: a plain function of rank, size and seed."""
    return torch.arange(1, size + 1, dtype=torch.float32) * (rank * 2 - 0.7) + seed


def junk(size):
    """A buffer to receive into; nothing may be read from it before."""
    return torch.full((size,), torch.nan)


def both(size=4, seed=0):
    return of(0, size, seed) + of(1, size, seed)


# name -> function of the options, which calls and returns (result, inputs by index, outputs by index)
def all_reduce(name="all_reduce", **options):
    tensor = of(RANK)
    result = dist.all_reduce(tensor, **options)
    return result, {0: [of(RANK)]}, {0: [both()]}, [tensor]


def all_reduce_coalesced(**options):
    tensors = [of(RANK), of(RANK, 3)]
    result = c10d.all_reduce_coalesced(tensors, **options)
    return result, {0: [of(RANK), of(RANK, 3)]}, {0: [both(), both(3)]}, tensors


def broadcast(**options):
    tensor = of(RANK)
    result = dist.broadcast(tensor, src=0, **options)
    return result, {0: [of(0)]} if RANK == 0 else {}, {0: [of(0)]}, [tensor]


def broadcast_group_src(**options):
    tensor = of(RANK)
    result = dist.broadcast(tensor, group_src=1, **options)
    return result, {0: [of(1)]} if RANK == 1 else {}, {0: [of(1)]}, [tensor]


def reduce(**options):
    tensor = of(RANK)
    result = dist.reduce(tensor, 1, **options)
    # On the other rank the tensor is scratch space: whatever is there after the call.
    return result, {0: [of(RANK)]}, {0: [both()] if RANK == 1 else None}, [tensor]


def scatter(**options):
    tensor, parts = junk(4), [of(0, 4, 5), of(0, 4, 6)]
    result = dist.scatter(tensor, parts if RANK == 0 else None, src=0, **options)
    lists = {1: parts} if RANK == 0 else {}
    return result, lists, {0: [of(0, 4, 5 + RANK)], **lists}, [tensor, parts]


def gather(**options):
    tensor, into = of(RANK), [junk(4), junk(4)] if RANK == 0 else None
    result = dist.gather(tensor, into, dst=0, **options)
    outputs = {1: [of(0), of(1)]} if RANK == 0 else {}
    return result, {0: [of(RANK)]}, {0: [of(RANK)], **outputs}, [tensor, into]


def reduce_scatter(**options):
    output, parts = junk(4), [of(RANK, 4, 1), of(RANK, 4, 2)]
    result = dist.reduce_scatter(output, parts, **options)
    return result, {1: parts}, {0: [both(4, 1 + RANK)], 1: parts}, [output, parts]


def reduce_scatter_single(function="reduce_scatter_single", **options):
    output, whole = junk(2), of(RANK)
    result = getattr(dist, function)(output, whole, **options)
    return result, {1: [of(RANK)]}, {0: [both().chunk(2)[RANK]], 1: [of(RANK)]}, [output, whole]


def reduce_scatter_tensor(**options):
    return reduce_scatter_single("reduce_scatter_tensor", **options)


def _reduce_scatter_base(**options):
    return reduce_scatter_single("_reduce_scatter_base", **options)


def all_gather(**options):
    into, tensor = [junk(4), junk(4)], of(RANK)
    result = dist.all_gather(into, tensor, **options)
    return result, {1: [of(RANK)]}, {0: [of(0), of(1)], 1: [of(RANK)]}, [into, tensor]


def all_gather_single(function="all_gather_single", **options):
    into, tensor = junk(8), of(RANK)
    # By name and in another order: the index is that of the parameter.
    result = getattr(dist, function)(input_tensor=tensor, output_tensor=into, **options)
    gathered = torch.cat([of(0), of(1)])
    return result, {1: [of(RANK)]}, {0: [gathered], 1: [of(RANK)]}, [into, tensor]


def all_gather_into_tensor(**options):
    return all_gather_single("all_gather_into_tensor", **options)


def _all_gather_base(**options):
    return all_gather_single("_all_gather_base", **options)


def all_gather_coalesced(**options):
    into = [[junk(4), junk(2)], [junk(4), junk(2)]]
    mine = [of(RANK), of(RANK, 2)]
    result = c10d.all_gather_coalesced(into, mine, **options)
    everything = [of(0), of(0, 2), of(1), of(1, 2)]
    return result, {1: mine}, {0: everything, 1: mine}, [into, mine]


def all_to_all(**options):
    parts, into = [of(RANK, 4, to) for to in (0, 1)], [junk(4), junk(4)]
    result = dist.all_to_all(into, parts, **options)
    found = [of(origin, 4, RANK) for origin in (0, 1)]
    return result, {1: parts}, {0: found, 1: parts}, [into, parts]


def all_to_all_single(**options):
    into, mine = junk(2 + 2 * RANK), of(RANK, 3)
    splits = [1 + RANK] * 2, [1, 2]
    result = dist.all_to_all_single(into, mine, *splits, **options)
    found = torch.cat([of(0, 3).split([1, 2])[RANK], of(1, 3).split([1, 2])[RANK]])
    return result, {1: [of(RANK, 3)]}, {0: [found], 1: [of(RANK, 3)]}, [into, mine]


COLLECTIVES = (
    *(all_reduce, all_reduce_coalesced, broadcast, broadcast_group_src, reduce, scatter, gather),
    *(reduce_scatter, reduce_scatter_single, reduce_scatter_tensor, _reduce_scatter_base),
    *(all_gather, all_gather_single, all_gather_into_tensor, _all_gather_base),
    *(all_gather_coalesced, all_to_all, all_to_all_single),
)
FUTURES = ("all_reduce_coalesced", "all_gather_coalesced")  # asynchronous, these give no Work


class Run:
    """A watched model, and what is expected of the calls made beside it."""

    def __init__(self, out, **keys):
        torch.manual_seed(0)
        self.model = keys.pop("model", None) or nn.Linear(3, 2)
        self.optimizer = keys.pop("optimizer", None)
        self.optimizer = self.optimizer or torch.optim.SGD(self.model.parameters(), lr=0.1)
        keys = {"kinds": ["grad_reduced", "cc"], "collective_inputs": True, **keys}
        self.watch = trainmon.watch(self.model, self.optimizer, out=out / "run", **keys)
        self.collectives = self.watch._adapter.collectives
        self.step, self.calls, self.expected = 0, {}, []

    def expect(self, name, inputs, outputs):
        call = self.calls[name] = self.calls.get(name, -1) + 1
        for moment, values in (("pre", inputs), ("post", outputs)):
            for index, tensors in values.items():
                # None: a row, of which the values are not known.
                tensors = tensors and [tensor.clone() for tensor in tensors]
                self.expected.append((self.step, name, call, f"{moment}.{index}", tensors))

    def take_step(self):
        self.optimizer.zero_grad()
        self.model(of(RANK, 3)).sum().backward()
        self.optimizer.step()
        self.step, self.calls = self.step + 1, {}

    def stop(self):
        return self.watch.stop()


def attributes():
    """Everything that may be replaced, as it is now."""
    found = {}
    for space in (dist, c10d, c10d.ProcessGroup, c10d.Work, torch.autograd):
        for name, value in vars(space).items():
            if callable(value):
                found[f"{space.__name__}.{name}"] = value
    return found


def name_of(function):
    return {"broadcast_group_src": "broadcast"}.get(function.__name__, function.__name__)


def functions(out, backend):
    """Step 0 synchronous, step 1 asynchronous."""
    run = Run(out, backend=backend)
    for function in COLLECTIVES:
        result, inputs, outputs, _ = function()
        assert result is None
        run.expect(name_of(function), inputs, outputs)
    run.take_step()
    for function in COLLECTIVES:
        work, inputs, outputs, _tensors = function(async_op=True)
        future = function.__name__ in FUTURES
        run.expect(name_of(function), inputs, {} if future else outputs)
        if future:
            work.wait()
        else:
            assert isinstance(work, dist.Work) and work.wait() is True
            assert work.wait(timeout=c10d.timedelta(seconds=5)) is True  # a second row? no
    run.take_step()
    return {"expected": run.expected, "health": run.stop()}


def point_to_point(out):
    early = dist.isend, dist.irecv
    tensors = [junk(2), junk(3)]
    kept = [
        dist.P2POp(early[0], of(RANK, 2), OTHER),
        dist.P2POp(early[1], tensors[0], OTHER),
    ]
    run = Run(out)
    if RANK == 0:
        dist.send(of(0), 1)
        run.expect("send", {0: [of(0)]}, {0: [of(0)]})
        assert dist.isend(of(0, 3), 1).wait() is True
    else:
        buffer = junk(4)
        assert dist.recv(buffer, 0) == 0
        run.expect("recv", {}, {0: [of(0)]})
        buffer = junk(3)
        assert dist.irecv(buffer, 0).wait() is True
        run.expect("irecv", {}, {0: [of(0, 3)]})
        del buffer
    # From anywhere.
    if RANK == 1:
        sent = of(1, 5)
        dist.isend(sent, 0).wait()
        run.expect("isend", {0: [sent]}, {0: [sent]})
    else:
        run.expect("isend", {0: [of(0, 3)]}, {0: [of(0, 3)]})
        buffer = junk(5)
        assert dist.recv(buffer) == 1
        run.expect("recv", {}, {0: [of(1, 5)]})
    run.take_step()
    # Operations made before and during the monitoring, of unequal shapes.
    for operations in (
        kept,
        [
            dist.P2POp(early[0], of(RANK, 3), OTHER),
            dist.P2POp(dist.irecv, tensors[1], OTHER),
        ],
    ):
        size = operations[0].tensor.numel()
        works = dist.batch_isend_irecv(operations)
        assert len(works) == 2 and all(work.wait() is True for work in works)
        sent = of(RANK, size)
        run.expect("batch_isend_irecv", {0: [sent]}, {0: [sent, of(OTHER, size)]})
    health = run.stop()
    works = dist.batch_isend_irecv(operations)  # made while functions were replaced
    assert all(work.wait() for work in works)
    return {"expected": run.expected, "health": health}


def odd(out):
    """What gives no row, or must not fail."""
    alone = dist.new_group([0])
    run = Run(out)
    before = run.watch.health()["rows_produced"]
    if RANK == 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.all_reduce(of(1), group=alone)  # not in it
    found = [None, None]
    dist.all_gather_object(found, {"rank": RANK})
    assert found == [{"rank": 0}, {"rank": 1}]
    things = [1, "a"] if RANK == 0 else [None, None]
    dist.broadcast_object_list(things, src=0)
    assert things == [1, "a"]
    dist.barrier()
    # An asynchronous call that nobody waits for holds nothing.
    tensor = of(RANK)
    gone = weakref.ref(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        pass
    run.expect("all_reduce", {0: [of(RANK)]}, {})
    del tensor, work
    deadline = time.monotonic() + 10  # gloo's own thread may be about to let go of it
    while gone() is not None and time.monotonic() < deadline:
        gc.collect()
    assert gone() is None and not run.collectives.waiting
    # Mistakes raise what they raise.
    for mistake in (
        lambda: dist.all_reduce("no tensor"),
        lambda: dist.all_reduce(of(0), group="no group"),
        lambda: dist.all_reduce(),
        lambda: dist.all_gather([], of(0)),
        lambda: dist.batch_isend_irecv([]),
        lambda: dist.P2POp(dist.all_reduce, of(0), OTHER),
    ):
        try:
            mistake()
        except Exception as error:
            watched = type(error), str(error)
        else:
            raise AssertionError("it should have raised")
        run.collectives.on, on = False, run.collectives.on
        try:
            mistake()
        except Exception as error:
            assert watched == (type(error), str(error))
        run.collectives.on = on
    run.calls["all_reduce"] = 2  # two of them were mistakes of arguments
    run.expect("all_gather", {0: [], 1: [of(0)]}, {})  # was looked at before it raised
    # Calls that only take place later give nothing that could be read.
    tensors = [of(RANK), of(RANK, 4, 1)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert torch.equal(tensors[1], both(4, 1))
    for seed in (0, 1):
        run.expect("all_reduce", {0: [of(RANK, 4, seed)]}, {})
    # A dtype of its own, an empty tensor, one that requires grad, one inside autograd.
    counts = torch.tensor([RANK, 2])
    dist.all_reduce(counts)
    run.expect("all_reduce", {0: [torch.tensor([RANK, 2])]}, {0: [torch.tensor([1, 4])]})
    dist.all_reduce(torch.empty(0))
    run.expect("all_reduce", {0: [torch.empty(0)]}, {0: [torch.empty(0)]})
    produced = run.watch.health()["rows_produced"] - before
    run.take_step()
    health = run.stop()
    return {"expected": run.expected, "health": health, "produced": produced}


def callers(out, *patterns):
    """One monitor after another, each with one of the patterns."""

    def wanted():
        dist.all_reduce(of(RANK))

    def unwanted():
        dist.broadcast(of(RANK), 0)

    seen = []
    for index, pattern in enumerate(patterns):
        run = Run(out / str(index), collective_callers=[pattern])
        for _ in range(3):
            wanted()
            unwanted()
            run.take_step()
        seen.append(run.collectives.seen())
        run.stop()
    return {"seen": seen}


def restored(out):
    """Two monitors, and a library that puts its own function on top of ours."""
    bare = attributes()
    one, two = Run(out / "one"), Run(out / "two")
    dist.all_reduce(of(RANK))
    assert dist.all_reduce.__name__ == "all_reduce"
    assert c10d.all_reduce is dist.all_reduce is not bare["torch.distributed.all_reduce"]
    assert dist.isend is bare["torch.distributed.isend"]
    one.stop()
    dist.all_reduce(of(RANK))
    counts = [run.watch.health()["rows_produced"] for run in (one, two)]
    two.stop()
    assert attributes() == bare
    three = Run(out / "three")
    ours = dist.all_gather
    dist.all_gather = lambda *args, **kwargs: ours(*args, **kwargs)
    theirs = dist.all_gather
    produced = three.watch.health()["rows_produced"]
    three.stop()
    left = {name for name, value in attributes().items() if value is not bare[name]}
    into = [junk(4), junk(4)]
    dist.all_gather(into, of(RANK))
    assert torch.equal(into[1], of(1)) and dist.all_gather is theirs
    assert three.watch.health()["rows_produced"] == produced
    dist.all_gather = bare["torch.distributed.all_gather"]
    # A Work of somebody else's, whose C++ side looks for overrides.
    four = Run(out / "four")

    class Theirs(dist.Work):
        pass

    try:
        Theirs().wait(c10d.timedelta(milliseconds=20))
    except RecursionError:
        raise
    except Exception as error:
        said = str(error)
    else:
        said = ""

    class TheirGroup(dist.ProcessGroup):
        pass

    try:
        TheirGroup(0, 1).send([of(0)], 0, 0)
    except RecursionError:
        raise
    except RuntimeError as error:
        said += str(error)
    four.stop()
    return {"expected": [], "left": left, "counts": counts, "said": said}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def local_of(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def train(out, kind):
    """The same training bare and watched. Local gradients come from a copy that is not spread."""
    return {mode: train_once(out / mode, kind, mode) for mode in ("bare", "functions", "all")}


def train_once(out, kind, mode):
    torch.manual_seed(0)
    torch._dynamo.reset()
    inner = Net()
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        inner.norm = nn.Identity()
        model = fully_shard(inner)
    else:
        model = nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    called = torch.compile(model) if kind == "compiled" else model
    run = None
    if mode != "bare":
        run = Run(out, model=model, optimizer=optimizer, collectives=mode)
    trail, local, reduced = [], [], []
    for step in range(4):
        optimizer.zero_grad()
        torch.manual_seed(10 * step + RANK)
        data = torch.randn(6, 3)
        if kind != "fsdp2":
            plain = copy.deepcopy(inner)
            local.append(torch.autograd.grad(plain(data).pow(2).sum(), list(plain.parameters())))
        loss = called(data).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            total = loss.detach().clone()
            dist.all_reduce(total)
        reduced.append([local_of(p.grad).clone() for p in inner.parameters()])
        optimizer.step()
        trail += [total, loss.detach(), torch.get_rng_state()]
        trail += [local_of(t.detach()).clone() for t in (*model.parameters(), *model.buffers())]
    report = {"trail": trail, "reduced": reduced, "local": local}
    if run is not None:
        report["health"] = run.stop()
    return report


class Speaking(nn.Linear):
    """Calls in the forward, and in the backward before and after gradients were accumulated."""

    def forward(self, x):
        dist.all_reduce(of(RANK))
        y = super().forward(x)
        x.register_hook(lambda _: dist.broadcast(of(RANK), 0))
        y.register_hook(lambda _: dist.broadcast(of(RANK), 0))
        return y


def places(out):
    run = Run(out, model=Speaking(3, 2), collective_inputs=False)
    for _ in range(2):
        run.optimizer.zero_grad()
        dist.all_reduce(of(RANK))
        for _ in range(2):
            run.model(of(RANK, 3).requires_grad_()).sum().backward()
            dist.reduce(of(RANK), 0)
        dist.all_gather([junk(4), junk(4)], of(RANK))
        run.optimizer.step()
    return {"health": run.stop()}


def compiled(out):
    """Compiled code has the collective in its graph, as if nothing had been replaced."""
    run = Run(out)

    def exchange(x):
        dist.all_reduce(x)
        return x * 2

    found = torch.compile(exchange, backend="aot_eager", fullgraph=True)(of(RANK))
    assert torch.equal(found, 2 * both())
    run.take_step()
    return {"expected": [], "health": run.stop()}


class Exchanging(nn.Module):
    """Collectives as operations of the forward: functional ones, and those of a DTensor."""

    def __init__(self, mesh):
        super().__init__()
        self.linear, self.mesh = nn.Linear(3, 2), mesh

    def forward(self, x):
        from torch.distributed import _functional_collectives as functional
        from torch.distributed.tensor import DTensor, Partial, Replicate

        total = functional.all_reduce(x, "sum", dist.group.WORLD)
        parts = DTensor.from_local(x * 2, self.mesh, [Partial()])
        self.sums = total + 0, parts.redistribute(self.mesh, [Replicate()]).to_local() + 0
        return self.linear(self.sums[0] + self.sums[1])


def functional(out):
    from torch.distributed.device_mesh import init_device_mesh

    bare = attributes()
    model = Exchanging(init_device_mesh("cpu", (2,)))
    run = Run(out, model=model, collectives="all")
    run.take_step()
    assert torch.equal(model.sums[0], both(3)) and torch.equal(model.sums[1], 2 * both(3))
    run.step = 0
    for factor in (1, 2):
        name = "_c10d_functional.all_reduce"
        run.expect(name, {0: [factor * of(RANK, 3)]}, {0: [factor * both(3)]})
    run.step, run.calls = 1, {}
    # A forward or backward that raises leaves no mode behind.
    model.mesh, mesh = None, model.mesh
    for _ in range(2):
        try:
            model(of(RANK, 3))
        except Exception:
            assert torch._C._len_torch_dispatch_stack() == 0
        run.expect("_c10d_functional.all_reduce", {0: [of(RANK, 3)]}, {})  # nobody waited
    model.mesh = mesh
    try:
        torch.autograd.backward(model.linear(of(0, 3)))  # not a scalar
    except RuntimeError:
        assert torch._C._len_torch_dispatch_stack() == 0
    health = run.stop()
    return {"expected": run.expected, "health": health, "same": attributes() == bare}


def main():
    out, (case, *options) = pathlib.Path(sys.argv[1]), sys.argv[2:]
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    launch.join()
    report = globals()[case](out, *options)
    torch.save(report, out / f"{RANK}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
