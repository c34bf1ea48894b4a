"""GPT-2 with random weights, ways to compile it, and one training or inference step: what the GPT-2 benchmarks share."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMPILERS = ("kiln", "backend", "eager", "inductor")


def make_model(layers=12, width=768, heads=12, vocabulary=50257, dropout=0.0, seed=0, dtype=None):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocabulary, use_cache=False,
                        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=vocabulary - 1,
                        eos_token_id=vocabulary - 1)
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # else transformers warns inside forward, which breaks every compiler's graph
    return model if dtype is None else model.to(dtype)


def tokens(batch=1, sequence=512, vocabulary=50257, seed=1):
    import torch

    return torch.randint(0, vocabulary, (batch, sequence), generator=torch.Generator().manual_seed(seed))


def make_batch(*arguments, **keywords):
    """Keywords of a call that gives the loss of tokens()."""
    ids = tokens(*arguments, **keywords)
    return {"input_ids": ids, "labels": ids}


def compiled(model, compiler):
    """The callable to use instead of `model`. Its blocks may be changed in place: give each compiler its own copy."""
    import torch

    if compiler == "kiln":
        import kiln

        return kiln.compile(model)
    if compiler in ("backend", "tuned"):
        return torch.compile(model, backend="kiln", mode="max-autotune" if compiler == "tuned" else None)
    if compiler in ("inductor", "autotune"):
        return torch.compile(model, mode="max-autotune" if compiler == "autotune" else None)
    return model


def compiled_optimizer(optimizer, compiler):
    """The optimizer, its step compiled as the model is."""
    import torch

    if compiler == "kiln":
        import kiln

        return kiln.compile(optimizer)
    if compiler != "eager":
        backend = "kiln" if compiler in ("backend", "tuned") else "inductor"
        mode = "max-autotune" if compiler in ("autotune", "tuned") else None
        optimizer.step = torch.compile(optimizer.step, backend=backend, mode=mode)
    return optimizer


def training_step(run, model, batch):
    """Loss and gradients; gradients are dropped afterwards."""
    def step():
        run(**batch).loss.backward()
        model.zero_grad(set_to_none=True)
    return step


def forward_step(run, batch):
    import torch

    def step():
        with torch.no_grad():
            run(**batch)
    return step


def bench_program(name):
    """A program of this folder, built beside the `kiln` in PATH."""
    return str(pathlib.Path(shutil.which("kiln")).resolve().parents[1] / "bench" / name)


class Cache:
    """A cache directory of its own for Kiln and for Inductor, with no daemon left behind."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="kiln-bench-")
        self.environment = dict(os.environ, KILN_CACHE_DIR=f"{self.path}/kiln",
                                TORCHINDUCTOR_CACHE_DIR=f"{self.path}/inductor")
        return self

    def __exit__(self, *_):
        self.stop_daemon()
        shutil.rmtree(self.path, ignore_errors=True)

    def stop_daemon(self):
        """Ends this cache's daemon by its pid, which its lock file holds, and waits until it is gone."""
        lock = pathlib.Path(self.path, "kiln", "kilnd.lock")
        try:
            pid = int(lock.read_text().split()[0])
            os.kill(pid, signal.SIGTERM)
        except (OSError, ValueError, IndexError):
            return
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and pathlib.Path(f"/proc/{pid}").exists():
            time.sleep(0.01)

    def kiln(self, *arguments):
        """What the command line prints over this cache."""
        return subprocess.run(["kiln", *map(str, arguments)], env=self.environment, check=True, capture_output=True).stdout

    def run(self, script, *arguments, **environment):
        """A Python script of this folder in a process of its own; what it printed last, as JSON."""
        import json

        process = subprocess.run([sys.executable, str(ROOT / "bench" / script), *map(str, arguments)],
                                 env=dict(self.environment, **environment), capture_output=True, text=True, check=False)
        if process.returncode != 0:
            raise RuntimeError(f"{script} {arguments}: {process.stderr[-2000:]}")
        return json.loads(process.stdout.strip().splitlines()[-1])
