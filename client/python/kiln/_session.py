"""What this process knows of Kiln: whether it is wanted, its client, its counters, and what was said to the user."""

from __future__ import annotations

import collections
import functools
import json
import os
import sys
import threading
import weakref

from ._reasons import Reason


class Session:
    """One per process; made on first use. Threading: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, object] = {}  # by device; None is one that could not be had
        self.targets: dict[str, collections.Counter] = {}  # that graphs are built for besides; nodes built, and left
        self._said: set[str] = set()
        self.causes: set[str] = set()  # of those that say_cause was told
        self.counts: collections.Counter = collections.Counter()
        self.fallback_ops: collections.Counter = collections.Counter()
        self.reasons: list[dict] = []
        self._check: str | None = None
        self._wait: str | None = None
        self.is_forced = False  # programs are checked whatever is known of them, and those once found wrong tried again
        self.is_check_unkept = False  # once there was nobody to keep what a check found

    def client(self, device: str = ""):
        """The client of a device, by Kiln's name (none: the host), or None when libkiln, its configuration or the device cannot
        be had; said once."""
        with self._lock:
            if device not in self._clients:
                try:
                    from . import _kiln

                    self._clients[device] = _kiln.Client(device=device or None, python=sys.executable)
                except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
                    self._clients[device] = None
                    self.causes.add(str(error))
                    self.say(f"client {device}", f"not available: {error}; models{on(device)} run in torch")
                    self.note_fallback("client", f"{device or 'host'}: {error}")
            return self._clients[device]

    @property
    def check(self) -> str:
        """When programs run beside torch: client.check of the configuration."""
        if self._check is None:
            self._check = self._setting("client.check", "never")
        return self._check

    @check.setter
    def check(self, policy: str) -> None:
        self._check = policy

    @property
    def wait(self) -> str:
        """When a step waits for its programs: client.wait of the configuration. Without a daemon, and where hits are
        required, nothing is built: who looks for a program then finds it at once, or never does."""
        if self._wait is None:
            is_built = self._setting("daemon.use", "false") != "false" and not self.requires_hits
            self._wait = self._setting("client.wait", "always") if is_built else "always"
        return self._wait

    @wait.setter
    def wait(self, policy: str) -> None:
        self._wait = policy

    @functools.cached_property
    def requires_hits(self) -> bool:
        """Whether a program that is not there ends the caller: client.require_hit of the configuration."""
        return self._setting("client.require_hit", "false") == "true"

    @functools.cached_property
    def random(self) -> str:
        """Who draws random numbers: `random` of the configuration."""
        return self._setting("random", "torch")

    @functools.cached_property
    def convolution(self) -> str:
        """Who computes convolutions: `convolution` of the configuration."""
        return self._setting("convolution", "auto")

    @functools.cached_property
    def attention(self) -> str:
        """Who computes attention of CUDA tensors: `attention` of the configuration."""
        return self._setting("attention", "torch")

    @functools.cached_property
    def cache_directory(self) -> str:
        return self._setting("cache.directory", "")

    def _setting(self, key: str, without_client: str) -> str:
        client = self.client()
        return without_client if client is None else client.setting(key)

    def clients(self) -> list:
        """Those that could be had."""
        with self._lock:
            return [client for client in self._clients.values() if client is not None]

    def say(self, topic: str, message: str) -> None:
        """One line on stderr, the first time for each topic."""
        if topic not in self._said:
            self._said.add(topic)
            print(f"kiln: {message}", file=sys.stderr)

    def say_cause(self, error: Exception) -> None:
        """One line on stderr about what keeps all graphs from Kiln alike, with what to do: the first time for each."""
        if Reason.of(error).is_cause:
            self.causes.add(str(error))
            self.say(str(error), f"{error}; models run in torch")

    def note_fallback(self, what: str, why: str) -> None:
        """Records for explain() what ran in torch, and why."""
        entry = {"node": what, "reason": why}
        if entry not in self.reasons:
            self.reasons.append(entry)

    def count_between(self, op: str, why_not: Reason | None) -> None:
        """Adds an op that ran between captures: in Kiln, or in torch and why."""
        if why_not is None:
            self.counts["nodes_compiled"] += 1
            return
        self.counts["nodes_fallback"] += 1
        self.counts["nodes_between"] += 1
        self.fallback_ops[op] += 1
        self.note_fallback(op, why_not)


def on(device: str) -> str:
    return f" on {device}" if device else ""


_session = Session()


def session() -> Session:
    return _session


def disabled() -> bool:
    """As libkiln reads it (base/config/config.cc)."""
    return os.environ.get("KILN_DISABLE", "").lower() not in ("", "0", "false", "no", "off")


DEFAULTS = {
    "compilations": 0, "hits_mapped": 0, "hits_deferred": 0, "hits_daemon": 0, "joined": 0, "misses": 0, "programs": 0,
    "regions": 0, "generation": 0, "lookup_ms": 0,
}  # fmt: skip


COUNTED = (
    "nodes_compiled", "nodes_fallback", "nodes_between", "graphs", "graphs_eager", "captures_loaded", "captures_not_kept",
    "checked", "checks_failed", "calls_meanwhile", "weights_packed", "weights_mapped", "saving_races",
)  # fmt: skip


def stats() -> dict:
    """Counters of this process: libkiln's (docs/client.md), and of captured graphs `nodes_compiled`, `nodes_fallback`
    (views and what random numbers are made of not counted; a graph that n modules share counts n times), `nodes_between` (those of
    the fallback that ran between kiln.compile's captures), `fallback_ops` (name → count), `graphs`, `graphs_eager`,
    `captures_loaded`, `captures_not_kept`, `checked` and `checks_failed` (first runs beside torch, and those that did not
    agree), `calls_meanwhile` (of graphs or subgraphs, that torch ran as programs were not there yet), `weights_packed` and
    `weights_mapped` (packed copies of weights that were made here, and found in the cache), `saving_races` (of what training
    saves, that ran here),
    `relayouts` (inputs copied into the layout that a program expects)."""
    counters = dict(DEFAULTS)
    for client in _session.clients():
        add_counters(counters, json.loads(client.stats()))
    for name in COUNTED:
        counters[name] = _session.counts[name]
    counters["relayouts"] = sum(p.relayouts for p in live_programs())
    counters["fallback_ops"] = dict(_session.fallback_ops)
    return counters


def add_counters(counters: dict, more: dict) -> None:
    """Those of one client to those of all: generation is the lowest of programs in use, the others are sums."""
    generations = [c["generation"] for c in (counters, more) if c.get("programs")]
    for name, value in more.items():
        counters[name] = counters.get(name, 0) + value
    counters["generation"] = min(generations, default=0)


_live: weakref.WeakSet = weakref.WeakSet()


def note_live(owner) -> None:
    """Counts owner.programs() while the owner lives."""
    _live.add(owner)


def live_programs() -> list:
    """Programs of owners that are alive, for counting."""
    return [p for owner in list(_live) for p in owner.programs() if hasattr(p, "relayouts")]


def profile() -> list[dict]:
    """Launches of this process's programs, most time first: `program` (a number), `name`, `runs`, `wall_ms` and `busy_ms`
    (in all; busy is summed over threads), `shortest_ms` and `bytes` of its buffers. Empty unless the environment has KILN_PROFILE=1."""
    launches = []
    for number, program in enumerate(live_programs()):
        launches += [{"program": number, **launch} for launch in json.loads(program.describe()).get("profile", [])]
    return sorted(launches, key=lambda launch: -launch["wall_ms"])


def explain() -> list[dict]:
    """Why each miss of this process was one, and why each node that ran in torch did."""
    misses = [miss for client in _session.clients() for miss in json.loads(client.explain())]
    return misses + _session.reasons
