"""Whether a step waits for its programs, and what runs in a program's place where it does not: torch, until the program is there.

client.wait of the configuration says it. `always`: whoever needs a program waits for it. `first`: so it is in a graph's first
call; what other sizes need later is built while steps run in torch, and a later call swaps it in. `never`: the first call runs in
torch, too. Kernels serve ranges of sizes, so most further sizes need no code of their own, and a step waits PATIENCE_S for their programs.
Where it is not enough, while programs are being built, torch runs the subgraphs that they are of (Awaited). A size that is met by
chance gets programs where that is likely to pay (Chance), others when they are met for the MEETINGS-th time. Until then torch runs the
very graph that Dynamo gave (BySizes), as without Kiln.

A build is a thread that waits for the daemon, which does the work. At the end of the process such waits end, and the daemon's
work goes on; a forked child has none of its parent's threads, and asks anew.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import ctypes
import functools
import os
import threading
import time
import weakref
from typing import Callable

import torch
from torch import fx

from .. import _session
from .._reasons import Reason
from . import check, programs
from .scoped import set_within
from .tally import current_owner, instances, note_disturbance, tally_of
from .tensors import tensors_in

# Builds of one process that are waited for in the background; what is wanted beyond is asked for by a later call.
MAX_BUILDING = 8
# Kernels that may be compiled for sizes of a graph that are met once, beyond one for each program of theirs.
CHANCE_COMPILATIONS = 32
# What torch takes at least for a call of a graph whose sizes get programs when they are met once: those take some time themselves.
PAYS_S = 0.1
# Sizes that were not compiled for yet get programs when they are met so often, whatever those cost. In a loop over random sizes some
# are met twice by chance, as birthdays are; what is met three times is likely to be met again and again.
MEETINGS = 3
# What a step waits for a program of further sizes. With its kernels' code there a build takes some 20 to 100 ms.
PATIENCE_S = 0.25
# Sizes that one graph or subgraph has programs for; a loop over more lengths than this lets the oldest go.
MAX_BINDINGS = 64
# Sizes of one of them that are remembered to have been met.
MAX_MET = 4096
# What the end of a process waits for its builds at most; they end within a tenth of a second.
LEAVE_S = 5.0

BEING_BUILT = Reason("its program is being built",
                     advice="nothing: later calls run in Kiln; with client.wait: always calls wait for it")  # fmt: skip

# Of the graph that is compiled: whether its owner has had it for other sizes, and, where somebody else counts how often its sizes
# are met, what those that are met by chance may cost.
_is_more = contextvars.ContextVar("is_more", default=False)
_chance: contextvars.ContextVar[Chance | None] = contextvars.ContextVar("chance", default=None)


def meetings() -> int:
    """At which call a graph that is compiled here asks for its programs; 0: it waits for them, before."""
    policy = _session.session().wait
    if policy == "never":
        return 1
    return more_meetings() if policy == "first" and _is_more.get() else 0


def more_meetings() -> int:
    """The same for programs that other sizes need later."""
    if _session.session().wait == "always":
        return 0
    return 1 if _chance.get() else MEETINGS


def chance() -> Chance | None:
    """That of the graph that is compiled here, where it is of further sizes."""
    return _chance.get() if _is_more.get() else None


def chance_of_more() -> Chance:
    """That of further sizes of the graph that is compiled here."""
    return _chance.get() or Chance()


class Chance:
    """Whether sizes of one graph that are met by chance get programs: where torch takes PAYS_S for a call of it, as long as they cost
    no more than CHANCE_COMPILATIONS kernels, and one more for each program. Kernels that serve ranges of sizes soon cost less.

    Attributes: serves_many, whether programs for many sizes may serve its subgraphs (many_sizes.py); is_for_many, whether only these
    may in the call that is under way, whose sizes were not met often enough.

    Threading: any; of what two threads note at once something may be lost."""

    def __init__(self) -> None:
        self._left, self._torch_s = CHANCE_COMPILATIONS, 0.0
        self.serves_many, self.is_for_many = True, False

    @property
    def is_left(self) -> bool:
        return self._left > 0 and self._torch_s >= PAYS_S

    def timed(self, by_torch, *arguments):
        """What torch gives, for a call of the graph."""
        start = time.perf_counter()
        try:
            return by_torch(*arguments)
        finally:
            self._torch_s = time.perf_counter() - start

    def note(self, compilations: int) -> None:
        """What one program cost."""
        self._left = min(CHANCE_COMPILATIONS, self._left + 1 - compilations)


class Situation:
    """In which Dynamo gave a graph. Its compiled form is made at_work(), and called by way of by_sizes(compiled)."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self._gm, self._is_more, chance = gm, *note_compiled(gm)
        with set_within(_is_more, self._is_more):
            self._meetings, self._more_meetings = meetings(), more_meetings()
        self._sizes = [i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))
                       if isinstance(node.meta.get("example_value"), torch.SymInt)]  # fmt: skip
        is_counted = self._meetings > 0 or (self._more_meetings > 0 and bool(self._sizes))
        self._chance = chance if is_counted else None

    @contextlib.contextmanager
    def at_work(self):
        with set_within(_is_more, self._is_more), set_within(_chance, self._chance):
            yield

    def by_sizes(self, compiled):
        if self._chance is None:
            return compiled
        return BySizes(self._gm.forward, compiled, self._sizes, self._meetings, self._more_meetings, self._chance)


def note_compiled(gm: fx.GraphModule) -> tuple[bool, Chance]:
    """Whether Dynamo gave this graph before, for the owner at work and for other sizes, and what further ones may cost by chance; the
    next time it did."""
    known, said = tally_of(current_owner()).graphs, _without_sizes(gm.graph)
    is_known = said in known
    return is_known, known.setdefault(said, Chance())


def _without_sizes(graph: fx.Graph) -> int:
    """What tells graphs of Dynamo apart but for the sizes of tensors: a hash."""
    said = [torch.is_grad_enabled()]
    for node in graph.nodes:
        tensors = list(tensors_in(node.meta.get("example_value")))
        if tensors and node.op == "placeholder":
            said += [(t.dtype, t.device, t.dim(), t.requires_grad) for t in tensors]
        elif tensors:
            said.append((node.op, node.target, *(a for a in (*node.args, *node.kwargs.values()) if isinstance(a, bool))))
    return hash(tuple(said))


class BySizes:
    """A compiled graph, for sizes that were met often enough, or may have programs by chance, or from one for many sizes; for others
    Dynamo's own graph, whose steps are eager's.

    Threading: as torch.compile's functions; two threads that meet sizes at once may count as one."""

    def __init__(self, by_torch, compiled, sizes: list[int], meetings: int, more_meetings: int, chance: Chance) -> None:
        """sizes: which arguments are. meetings, more_meetings: of the first sizes, and of further ones."""
        self._by_torch, self._compiled, self._sizes, self._chance = by_torch, compiled, sizes, chance
        self._meetings, self._more_meetings, self._calls_of_a_step = meetings, more_meetings, instances()
        self._met, self._admitted = Meetings(), {}

    def __call__(self, *arguments):
        sizes = tuple([int(arguments[i]) for i in self._sizes])
        is_admitted = sizes in self._admitted or self._admit(sizes)
        self._chance.is_for_many = not is_admitted
        if is_admitted or (self._sizes and self._chance.serves_many):
            return self._compiled(*arguments)
        note_meanwhile()
        return self._chance.timed(self._by_torch, *arguments)

    def _admit(self, sizes: tuple) -> bool:
        if self._met.is_by_chance(sizes, self._meetings, self._calls_of_a_step) and not self._chance.is_left:
            return False
        self._meetings = self._more_meetings
        while len(self._admitted) >= MAX_BINDINGS:
            self._admitted.pop(next(iter(self._admitted)), None)
        self._admitted[sizes] = True
        return True


class Meetings:
    """Counts how often something was met."""

    def __init__(self) -> None:
        self._met: dict = {}

    def count(self, key) -> int:
        """This time included."""
        count = self._met[key] = self._met.pop(key, 0) + 1
        if len(self._met) > MAX_MET:
            self._met.pop(next(iter(self._met)), None)
        return count

    def is_by_chance(self, key, meetings: int, calls_of_a_step: int) -> bool:
        """Whether, this time included, it was met in fewer than `meetings` steps."""
        return meetings > 1 and self.count(key) <= (meetings - 1) * calls_of_a_step


building: set[Build] = set()
os.register_at_fork(after_in_child=building.clear)


class Build:
    """A program on its way, in a thread of its own: its daemon is waited for there. Threading: any thread looks at it.

    Attributes: is_sure, set once all is planned that is to be compiled, at the latest at the end; has_ended."""

    def __init__(self, make: Callable) -> None:
        """make: gives the program, in the mode that holds here."""
        _leave_in_the_end()
        self._program = self._error = None
        self.has_ended, self.is_sure, self._process = False, threading.Event(), os.getpid()
        self._context = contextvars.copy_context()
        self.thread = threading.Thread(target=self._context.run, args=(self._create, make), name="kiln-build", daemon=True)
        building.add(self)
        try:
            self.thread.start()
        except RuntimeError:  # Python ends, or there are too many threads
            building.discard(self)
            raise

    def _create(self, make: Callable) -> None:
        try:
            with programs.telling(self.is_sure.set):
                self._program = make()
        except Exception as error:  # noqa: BLE001: raised where the program is asked for
            self._error = error
        finally:
            self.has_ended = True
            self.is_sure.set()
            building.discard(self)

    def on_behalf(self, function: Callable, *arguments):
        """function(*arguments), in the mode and for the owner that the program was asked for."""
        return self._context.copy().run(function, *arguments)

    @property
    def is_lost(self) -> bool:
        """Whether its thread is another process's: this one is a fork."""
        return not self.has_ended and self._process != os.getpid()

    def result(self):
        """The program, waited for, or None in a fork, where its thread is not. Raises kiln's Error."""
        self.thread.join()
        if self._error is not None:
            raise self._error
        return self._program


@functools.cache
def _leave_in_the_end() -> None:
    atexit.register(_leave)


def _leave() -> None:
    """Nothing is left in libkiln, nor comes back from there, when Python ends."""
    from .. import _kiln  # there only with libkiln

    _kiln.end_waits()
    until = time.monotonic() + LEAVE_S
    for build in list(building):
        build.thread.join(max(0.0, until - time.monotonic()))


class Awaited:
    """In a program's place, as owner.run: torch. Asks for the program, and when it is there owner.take(program) puts it here. Where
    it cannot be had torch runs from then on, owner.check says so, and one line why.

    Threading: any; two that find the program at once both take it."""

    def __init__(self, owner, asked: tuple, eager, meetings: int, chance: Chance | None = None) -> None:
        """meetings: at which call the program is asked for. chance: that of its graph, where it is of further sizes: the call that
        asks has some patience."""
        self._owner, self._asked, self._eager, self._chance = weakref.ref(owner), asked, eager, chance
        self._calls_left, self._is_tuned, self._build = meetings, programs.is_tuned(), None

    def __call__(self, tensors: list, targets: list | None = None) -> list:
        if self._build is None or self._build.is_lost:
            self._ask()
        if (build := self._build) is not None and build.has_ended:
            return self._settle(build)(tensors, *(() if targets is None else (targets,)))
        note_meanwhile()
        return self._eager(tensors)

    def _ask(self) -> None:
        self._calls_left -= 1
        if self._calls_left <= 0 and len(building) < MAX_BUILDING:
            with programs.tuned(self._is_tuned):
                self._build = Build(functools.partial(programs.create_program, *self._asked))
            if self._chance and _session.session().wait == "first":
                self._build.thread.join(PATIENCE_S)

    def _settle(self, build: Build):
        """What runs from now on."""
        owner = self._owner()
        return self._eager if owner is None else settle(owner, build, self._eager, self._chance)


def settle(owner, build: Build, eager, chance: Chance | None = None):
    """Has the owner run the program that was built, or torch where it cannot be had; what it runs."""
    try:
        program = build.result()
        if chance:
            chance.note(programs.compilations_of(program))
        build.on_behalf(owner.take, program)
    except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
        _session.session().note_fallback("a subgraph", str(error))
        _session.session().say("background", f"a subgraph runs in torch: {error}")
        owner.run, owner.check = (lambda tensors, targets=None: eager(tensors)), check.FAILED
    return owner.run


def put_in_place(owner, asked: tuple, eager) -> None:
    """Has the owner run the program that is asked for: at once where it is mapped, else from its first call on, which waits for what
    is compiled until then. Raises kiln's Error where the program cannot be had, as far as that shows before code is compiled."""
    build = programs.take_begun(*asked)
    if build is None or build.is_lost:
        if (program := programs.mapped_program(*asked)) is not None:
            return owner.take(program)
        if len(building) >= MAX_BUILDING:
            return owner.take(programs.create_program(*asked))
        build = Build(functools.partial(programs.create_program, *asked))
    build.is_sure.wait()
    if build.has_ended:
        return owner.take(build.result())
    owner.run, owner.check = Planned(owner, asked, build, eager), check.WAITING


class Planned:
    """In the place of a program whose code is being compiled, as owner.run. The first call needs torch's results to compare the
    program's with: they are made while the daemon works.

    Threading: any; two that wait for the program at once both take it."""

    def __init__(self, owner, asked: tuple, build: Build, eager) -> None:
        self._owner, self._asked, self._build, self._eager = weakref.ref(owner), asked, build, eager

    def __call__(self, tensors: list, targets: list | None = None) -> list:
        note_disturbance()
        wanted = None if self._build.has_ended else self._meanwhile(tensors)
        run = self._settled()
        if wanted is not None and isinstance(run, check.Checked):
            return run.compared(tensors, wanted)
        return run(tensors, *(() if targets is None else (targets,)))

    def _meanwhile(self, tensors: list) -> list | None:
        """torch's results, where a first run may have to be compared with them."""
        if _session.session().check == "never":
            return None
        try:
            with _smaller_team() as enlarge:

                def step(op, arguments: tuple, keywords: dict):
                    if self._build.has_ended:
                        enlarge()
                    return check.with_rows_choice(op, arguments, keywords)

                return check.by_torch(self._eager, check.Facts(*self._asked), tensors, step)
        except Exception:  # noqa: BLE001: the first run meets it again
            return None

    def _settled(self):
        owner = self._owner()
        if owner is None:
            return self._eager
        if self._build.is_lost:
            self._build = self._build.on_behalf(Build, functools.partial(programs.create_program, *self._asked))
        return settle(owner, self._build, self._eager)


@contextlib.contextmanager
def _smaller_team():
    """A processor is left to the daemon: the threads of a team, which wait for one another at work, would keep it from where they
    wait. Only the calling thread's teams are smaller: torch.set_num_threads would concern threads that begin meanwhile, for good.
    Gives what makes them whole again, once the daemon is done."""
    threads = torch.get_num_threads()
    openmp, mkl = [getattr(_libtorch(), name, lambda threads: 0) for name in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local")]
    openmp(max(1, threads - 1))
    of_mkl = mkl(max(1, threads - 1))  # 0: as all threads

    def enlarge() -> None:
        openmp(threads)
        mkl(of_mkl)

    try:
        yield enlarge
    finally:
        enlarge()


@functools.cache
def _libtorch() -> ctypes.CDLL:
    """Symbols of torch's library and of those that it needs; without it, of the process."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    return ctypes.CDLL(path if os.path.exists(path) else None)


def note_meanwhile() -> None:
    """Counts a call of a graph or subgraph that torch runs as programs are not there yet."""
    _session.session().counts["calls_meanwhile"] += 1


__all__ = ["BEING_BUILT", "MAX_BINDINGS", "MEETINGS", "Awaited", "Build", "Chance", "Meetings", "Situation", "chance", "chance_of_more",
           "meetings", "more_meetings", "note_meanwhile", "put_in_place"]  # fmt: skip
