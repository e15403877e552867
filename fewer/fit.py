"""`fewer fit`: what of a model fits into this machine, or into a named GPU."""

from __future__ import annotations

import argparse
import difflib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.fit import Fit, Machine
    from engine.protocol.settings import EngineSettings

from fewer.options import add_executor, add_kv_cache_dtype

_GPU_NAMES = "H200, H100, A100-80, A100-40, L40S, A10, L4, RTX4090, RTX3090, T4"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a name of `fewer models`, or a GGUF file")
    parser.add_argument("--gpu", metavar="NAME", help=f"instead of this machine: {_GPU_NAMES}")
    parser.add_argument(
        "--context", metavar="TOKENS", type=int, help="longest request (default: 4096)"
    )
    parser.add_argument(
        "--kv-cache-mb", metavar="MIB", type=int, help="KV pool on this machine (default: 512)"
    )
    add_executor(parser)
    add_kv_cache_dtype(parser)


def run(arguments: argparse.Namespace) -> int:
    from engine.fit import fit_gpu, fit_machine
    from engine.runner.registry import shape_of
    from engine.weights.gguf import GgufFile
    from fewer import model_store
    from fewer.machine import this_machine

    settings = _settings(arguments)
    file = GgufFile.open(model_store.resolve(arguments.model))
    if arguments.gpu is not None:
        fit = fit_gpu(shape_of(file, "reference"), settings, _gpu(arguments.gpu))
    else:
        shape = shape_of(file, settings.executor, settings.kv_cache_dtype)
        fit = fit_machine(shape, settings, this_machine())
    _print_memory(arguments.model, fit, on_gpu=arguments.gpu is not None)
    _print_lengths(fit, on_gpu=arguments.gpu is not None)
    _print_verdict(fit, on_gpu=arguments.gpu is not None)
    return 0 if fit.fits else 1


def _settings(arguments: argparse.Namespace) -> EngineSettings:
    import msgspec

    from engine.protocol.errors import SetupError
    from engine.protocol.settings import EngineSettings

    settings = EngineSettings(
        executor=arguments.executor or "auto",
        kv_cache_dtype=arguments.kv_cache_dtype or "bfloat16",
    )
    given = {"max_model_len": arguments.context, "kv_cache_mb": arguments.kv_cache_mb}
    wanted = {name: value for name, value in given.items() if value is not None}
    for name, value in wanted.items():
        if value < 1:
            option = {"max_model_len": "--context", "kv_cache_mb": "--kv-cache-mb"}[name]
            raise SetupError(f"{option} must be at least 1, not {value}.")
    return msgspec.structs.replace(settings, **wanted)


def _gpu(name: str) -> Machine:
    from engine.fit import GPUS
    from engine.protocol.errors import SetupError

    plain = {_plain(known): known for known in GPUS}
    if _plain(name) in plain:
        return GPUS[plain[_plain(name)]]
    close = difflib.get_close_matches(_plain(name), plain, n=1)
    hint = f"Did you mean {plain[close[0]]}? " if close else ""
    raise SetupError(f"The GPU {name!r} is not in the table. {hint}Known: {', '.join(GPUS)}.")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _print_memory(model: str, fit: Fit, *, on_gpu: bool) -> None:
    from engine.fit import GPU_MEMORY_SHARE, mib

    shape, settings = fit.shape, fit.settings
    share = f"{GPU_MEMORY_SHARE:.0%} of the GPU's memory" if on_gpu else "free memory"
    rows = [
        ("weights", mib(shape.weight_bytes), shape.precision),
        ("activations", mib(fit.activation_bytes), f"steps of {settings.max_num_batched_tokens:,}"),
        ("KV pool", mib(max(0, fit.pool_bytes)), f"{fit.pool_tokens:,} tokens"),
        ("in all", mib(fit.total_bytes), f"of {mib(fit.machine.memory_bytes)}, {share}"),
    ]
    print(f"{model} ({shape.architecture}) on {fit.machine.name}\n")
    for label, size, remark in rows:
        print(f"  {label:<12}{size:>11}   {remark}")
    print(f"  {'KV':<12}{shape.kv_bytes_per_token / 1024:>7,.1f} KiB   per token\n")


def _print_lengths(fit: Fit, *, on_gpu: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from engine.fit import lengths, mib

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 2))
    for title in ("REQUEST OF", "KV", "SAFELY AT ONCE", "FIRST TOKEN"):
        table.add_column(title, justify="right")
    table.add_column("")
    for tokens in lengths(fit):
        served = "the served context" if tokens == fit.context_tokens else ""
        table.add_row(
            f"{tokens:,} tokens",
            mib(fit.kv_bytes(tokens)),
            f"{fit.room(tokens):,}",
            _duration(fit.first_token_s(tokens)),
            served,
        )
    width = None if sys.stdout.isatty() else 100
    Console(highlight=False, markup=False, width=width).print(table)
    expect = "Expect rather more." if on_gpu else "8-bit steps are quicker, a busy machine slower."
    print(
        "\nFirst token: an estimate for a prompt of that length, alone and not cached: arithmetic\n"
        "in 16 or 32 bit and memory traffic at the machine's peak, whichever takes longer.\n"
        f"{expect}"
    )


def _print_verdict(fit: Fit, *, on_gpu: bool) -> None:
    from engine.fit import MIB, mib

    context, window = fit.context_tokens, fit.shape.context_length
    if fit.settings.max_model_len > window:
        print(f"The model's window is {window:,} tokens; a longer context is not served.")
    missing_bytes = fit.total_bytes - fit.machine.memory_bytes
    if missing_bytes > 0:
        print(f"\nDoes not fit: {mib(missing_bytes)} are missing.")
    elif fit.room(context) == 0:
        needed_mb = -(-fit.kv_bytes(context) // MIB)
        cure = "" if on_gpu else f" Set kv_cache_mb to {needed_mb} or more."
        print(f"\nNo request of {context:,} tokens fits into the KV pool.{cure}")
    else:
        limit = f" (max_num_seqs; there is room for {fit.room(context):,})"
        note = limit if fit.room(context) > fit.at_once(context) else ""
        print(
            f"\nFits: {fit.at_once(context):,} requests of {context:,} tokens "
            f"run safely at once{note}."
        )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"≈ {seconds * 1000:,.1f} ms" if seconds < 1 else f"≈ {seconds:,.1f} s"
