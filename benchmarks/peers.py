"""The same work on other engines and on ours, over the same weights, in one run.

    make bench-peers                        sets up every peer and compares
    make bench-peers ARGS='--only llama.cpp --rounds 3'

Every engine runs in a process of its own, in an environment of its own, two threads each, and
waits while another works. Rounds are interleaved; the figures are medians, and what counts are
the ratios. Prints a Markdown table with hardware, versions, weights and shapes, and writes the
rows as JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import processor
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile
from fewer import model_store
from fewer.paths import cache_folder

HERE = Path(__file__).parent
Job = dict[str, list[Any]]
Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Contender:
    """One engine with one kind of weights.

    weights: how they are kept; `equal` compares only with those of the same name
    adapter: script under adapters/, run by `python`
    """

    name: str
    weights: str
    adapter: str
    python: Path
    model: Path


@dataclass(slots=True)
class Running:
    contender: Contender
    process: subprocess.Popen[str]
    version: str
    replies: dict[str, list[Reply]] = field(default_factory=dict)

    def run(self, name: str, job: Job) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        self.replies.setdefault(name, []).append(_reply(self.process))

    def median(self, name: str, job: Job) -> float:
        return statistics.median(_figure(name, job, reply) for reply in self.replies[name])


def jobs(tokenizer: Tokenizer) -> dict[str, Job]:
    """Shapes in tokens; prompts are this repository's own prose, each from another place."""
    text = "".join(path.read_text() for path in sorted(HERE.parent.glob("docs/*.md")))
    ids = tokenizer.encode(text)
    random = np.random.default_rng(0)

    def prompt(length: int) -> list[int]:
        start = int(random.integers(0, len(ids) - length))
        return ids[start : start + length]

    lengths = random.integers(32, 513, 32)
    return {
        "decode": {"prompts": [prompt(128)], "outputs": [128]},
        "prefill": {"prompts": [prompt(1024)], "outputs": [1]},
        "batch": {
            "prompts": [prompt(int(n)) for n in lengths],
            "outputs": random.integers(32, 257, 32).tolist(),
        },
    }


MEANING = {
    "decode": "one stream, 128 tokens in, 128 out: tokens/s after the first",
    "prefill": "one prompt of 1,024 tokens: prompt tokens/s",
    "batch": "32 requests at once, 32 to 512 in, 32 to 256 out: output tokens/s",
}


def _figure(name: str, job: Job, reply: Reply) -> float:
    if name == "prefill":
        return len(job["prompts"][0]) / float(reply["seconds"])
    if name == "decode":
        return (job["outputs"][0] - 1) / float(reply["seconds"] - reply["first_s"][0])
    return float(sum(job["outputs"])) / float(reply["seconds"])


def main() -> int:
    arguments = _parser().parse_args()
    model = model_store.resolve(arguments.model)
    work = jobs(Tokenizer.from_gguf(GgufFile.open(model).metadata))
    contenders = [*ours(model), *peers(model, arguments.only)]
    running = [start(contender, arguments.threads) for contender in contenders]
    try:
        for one in running:  # a round that does not count
            _say(f"warming up {one.contender.name} {one.contender.weights}")
            one.run("warm-up", {"prompts": work["decode"]["prompts"], "outputs": [16]})
        for number in range(arguments.rounds):
            for name, job in work.items():
                for one in running:
                    _say(f"round {number + 1} of {arguments.rounds}: {name}, {one.contender.name}")
                    one.run(name, job)
    finally:
        for one in running:
            one.process.kill()
            one.process.wait()
    report(running, work, arguments)
    return 0


def ours(model: Path) -> list[Contender]:
    python = Path(sys.executable)
    return [
        Contender("fewer", "q4_1", "fewer_engine.py", python, model),
        Contender("fewer", "q8_0", "fewer_engine.py", python, converted(model, "q8_0")),
    ]


def peers(model: Path, only: list[str] | None) -> list[Contender]:
    found: list[Contender] = []
    if not only or "llama.cpp" in only:
        python = environment("llama.cpp", ["llama-cpp-python"], {"CMAKE_ARGS": "-DGGML_NATIVE=ON"})
        for weights in ("q4_1", "q8_0", "bf16"):
            path = model if weights == "q4_1" else converted(model, weights)
            found.append(Contender("llama.cpp", weights, "llama_cpp_library.py", python, path))
    if not only or "openvino" in only:
        python = environment(
            "openvino", ["openvino-genai", "optimum-intel[openvino]", "torch==2.13.0"], {}
        )
        path = exported(model, python)
        found.append(Contender("openvino", "fp16", "openvino_genai_pipeline.py", python, path))
    return found


def environment(name: str, packages: list[str], variables: dict[str, str]) -> Path:
    """The interpreter of a peer's own environment; made the first time, which takes minutes."""
    folder = cache_folder() / "peers" / name
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        _say(f"setting up {name}: {' '.join(packages)}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(install, check=True, env=os.environ | variables)
        # optimum brings a torchvision that does not match this torch, and imports it.
        extra = ["torchvision", "torchaudio", "torchcodec"]
        subprocess.run(
            [str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *extra], check=True
        )
        (folder / "ready").touch()
    return python


def converted(model: Path, kind: str) -> Path:
    """The same weights as another file: `q8_0`, `bf16`, or `hf` for a checkpoint folder."""
    target = cache_folder() / "peers" / f"{model.stem}-{kind}{'' if kind == 'hf' else '.gguf'}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, *map(str, (HERE / "adapters/convert.py", model, kind, target))]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(HERE.parent)})
    return target


def exported(model: Path, python: Path) -> Path:
    target = cache_folder() / "peers" / f"{model.stem}-openvino"
    if not target.exists():
        _say("exporting the model for OpenVINO")
        tool = python.parent / "optimum-cli"
        words = ["export", "openvino", "--model", str(converted(model, "hf")), "--task"]
        words += ["text-generation-with-past", "--weight-format", "fp16", str(target)]
        subprocess.run([str(tool), *words], check=True)
    return target


def start(contender: Contender, threads: int) -> Running:
    command = [contender.python, HERE / "adapters" / contender.adapter, contender.model]
    process = subprocess.Popen(
        [*map(str, command), "--threads", str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(HERE.parent) if contender.name == "fewer" else ""},
    )
    return Running(contender, process, _reply(process)["ready"])


def _reply(process: subprocess.Popen[str]) -> Reply:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):  # libraries print what they like
            reply: Reply = json.loads(line)
            return reply
    raise SystemExit(f"peers: {process.args!r} ended with status {process.wait()}.")


def report(running: list[Running], work: dict[str, Job], arguments: argparse.Namespace) -> None:
    ours_q4 = running[0]
    rows = []
    for name, job in work.items():
        for one in running:
            figure = one.median(name, job)
            rows.append(
                {
                    "work": name,
                    "engine": one.version,
                    "weights": one.contender.weights,
                    "tokens_per_s": round(figure, 1),
                    "ours_q4_1_over_it": round(ours_q4.median(name, job) / figure, 2),
                    "all": [round(_figure(name, job, reply), 1) for reply in one.replies[name]],
                }
            )
    about = {
        "model": arguments.model,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    print(f"\n{about['model']}, {about['threads']} threads, {about['processor']}, {about['at']}\n")
    for name in work:
        print(
            f"**{name}**: {MEANING[name]}\n\n| engine | weights | tokens/s | ours, Q4_1, over it |"
        )
        print("|---|---|---|---|")
        for row in rows:
            if row["work"] == name:
                cells = ("engine", "weights", "tokens_per_s", "ours_q4_1_over_it")
                print(f"| {' | '.join(str(row[cell]) for cell in cells)} |")
        print()
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    (folder / "peers.json").write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")


def _say(line: str) -> None:
    print(f"peers: {line}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compare with other engines, in one run.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--only", nargs="*", choices=["llama.cpp", "openvino"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
