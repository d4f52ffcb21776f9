# PrecisionDebugger: msprobe's gradient probe, its configuration put into the words of trainmon. What
# depends on the framework is in pytorch/ and mindspore/.
from __future__ import annotations

from trainmon.base.console import log
from trainmon.compat.msprobe import grad_probe_config
from trainmon.compat.msprobe.config import load


class DebuggerFace:
    """The gradient probe of msprobe's manual: construct it with the path of a configuration, then
    monitor(model); stop() at the end of training.

    config_path  JSON; task must be "grad_probe", other tasks are not offered
    step         list of steps, in place of that of the file
    task, dump_path, level, model are taken as the peer does: the file's values hold

    There is one per process: as long as it has not been stopped, constructing gives the same one.
    TypeError, ValueError or RuntimeError names a bad field. Nothing is raised later.
    """

    _instance: DebuggerFace | None = None

    def __new__(cls, *args, **keys):
        if cls._instance is None or cls._instance._stopped:
            cls._instance = super().__new__(cls)
            cls._instance._ready = cls._instance._stopped = False
        return cls._instance

    def __init__(
        self, config_path=None, task=None, dump_path=None, level=None, model=None, step=None
    ):
        if self._ready:
            log.warning(
                "trainmon: there is a PrecisionDebugger: its configuration holds until stop()"
            )
            return
        self._probe = None
        self._settings: grad_probe_config.Settings | None = None
        self._paired = False  # with start(): then stop() ends one step of a script, not the probe
        try:
            self._read(config_path, task, dump_path, step)
        except BaseException:
            type(self)._instance = None
            raise
        self._ready = True

    def __reduce__(self):
        # A trainer that keeps one can be copied and saved: without it.
        return type(None), ()

    def _read(self, config_path, task, dump_path, step) -> None:
        if config_path is not None and not isinstance(config_path, str):
            raise TypeError(f"config_path should be a str, not {config_path!r}")
        given = load(config_path)[0] if config_path else {}
        for key, value in (("task", task), ("dump_path", dump_path)):
            if value is not None and given.setdefault(key, value) != value:
                log.warning("trainmon: %s %r of the configuration holds", key, given[key])
        if step is not None:
            given["step"] = step
        self.task = given.get("task")
        if self.task == grad_probe_config.TASK:
            self._settings = grad_probe_config.checked(given)

    @classmethod
    def _the_one(cls) -> DebuggerFace:
        if cls._instance is None:
            raise RuntimeError("PrecisionDebugger instance is not created.")
        return cls._instance

    @classmethod
    def monitor(cls, model) -> None:
        """Looks at the gradients of this model from now on. TypeError for what torch.jit.trace made."""
        cls._the_one()._monitor(model)

    def _monitor(self, model) -> None:
        settings = self._settings
        if settings is None:
            log.warning(
                "trainmon: task is %r: monitor() is for grad_probe and does nothing", self.task
            )
            return
        self._check(model)  # a bad one leaves the old one monitored
        if self._probe is not None:
            log.warning("trainmon: monitor() was called before: the new model is looked at now")
            self._probe.stop()
        self._stopped = False
        self._probe = self._new_probe(
            model,
            out=settings.dump_path,
            level=settings.level,
            bounds=settings.bounds,
            params=settings.parameters,
            steps=settings.steps,
            ranks=settings.ranks,
            signs="npy",
            digest=settings.digest if settings.level == "L0" else "none",
        )

    # What the framework knows. On MindSpore `model` is the optimizer, as in the manual.
    def _check(self, model) -> None:
        """Raises TypeError for what cannot be monitored."""
        raise NotImplementedError

    def _new_probe(self, model, **settings):
        raise NotImplementedError

    @classmethod
    def start(cls, model=None, token_range=None) -> None:
        """Of the peer's other tasks; here it only tells that stop() will come at every step."""
        cls._the_one()._paired = True

    @classmethod
    def step(cls) -> None:
        """Of the peer's other tasks: does nothing."""
        cls._the_one()

    @classmethod
    def stop(cls) -> None:
        """Takes the hooks off and writes what is left. In a script that calls start(), stop() and
        step() around every step it does nothing, as in the peer. The end of the process does
        it."""
        debugger = cls._the_one()
        if debugger._paired:
            return
        if debugger._probe is not None:
            debugger._probe.stop()
            debugger._probe = None
        debugger._stopped = True
