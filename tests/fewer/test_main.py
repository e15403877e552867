from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from engine.protocol.errors import SetupError
from fewer.main import COMMANDS, main


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A command `fake` whose `run` can be replaced."""
    module = SimpleNamespace(configure=lambda parser: None, run=lambda arguments: 0)
    monkeypatch.setitem(sys.modules, "fewer.fake", module)
    monkeypatch.setitem(COMMANDS, "fake", "does what a test wants")
    return module


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name, summary in COMMANDS.items():
        assert f"{name} " in shown
        assert summary.split()[0] in shown


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"fewer {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["keys", "list"], "Show all keys; never their secrets."),
        (["keys", "limit"], "Set what a key or a tenant may use; without limits, lift them."),
        (["models", "add"], "Register a GGUF file; it stays where it is."),
        (["route", "train"], "Learn which prompts need the stronger of two models."),
    ],
)
def test_so_does_every_action(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("words", [["sreve"], ["serve", "--prot", "1"], ["chat", "stray"]])
def test_wrong_usage_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: fewer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sreve"], "usage: fewer [-h] [--version] COMMAND ...\n"),
        (["sreve"], "there is no command 'sreve'. Did you mean serve?"),
        (["zzz"], "there is no command 'zzz'. There are serve, "),
        (["chat", "--prot", "1"], "usage: fewer chat [-h]"),
        (["chat", "--prot", "1"], "there is no argument --prot 1"),
    ],
)
def test_wrong_usage_is_told_by_the_command_that_was_meant(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert told in capsys.readouterr().err


def test_a_summary_keeps_its_capitals(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    assert "Say what of a model fits into this machine or a named GPU." in capsys.readouterr().out


def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"fewer {version('fewer')}\n"


def test_an_error_is_one_line_and_status_1(
    command: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise SetupError("The disk is full.")

    command.run = fail
    assert main(["fake"]) == 1
    assert capsys.readouterr().err == "fewer: The disk is full.\n"


def test_ctrl_c_ends_quietly(command: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(arguments: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    command.run = interrupted
    assert main(["fake"]) == 130
    assert capsys.readouterr().err == ""


def test_the_commands_answer_is_the_exit_code(command: SimpleNamespace) -> None:
    command.run = lambda arguments: 7
    assert main(["fake"]) == 7


def test_a_reader_that_leaves_is_no_error() -> None:
    script = (
        "import sys; from types import SimpleNamespace; from fewer.main import COMMANDS, main\n"
        "def run(arguments):\n"
        "    print('x' * 1_000_000); sys.stdout.flush(); return 0\n"
        "sys.modules['fewer.fake'] = SimpleNamespace(configure=lambda parser: None, run=run)\n"
        "COMMANDS['fake'] = 'prints'\n"
        "sys.exit(main(['fake']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 1


def test_python_m_fewer_is_the_same_program() -> None:
    done = run_python("-m", "fewer", "--version")
    assert done.stdout.startswith("fewer ")
    assert done.returncode == 0


HEAVY = ["asyncio", "msgspec", "numpy", "rich", "torch", "yaml"]


def test_help_loads_nothing_heavy() -> None:
    done = run_python(
        "-c",
        "import sys\n"
        "from fewer.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])",
    )
    assert done.stdout.endswith("[]\n"), done.stderr


def test_only_the_command_asked_for_is_imported() -> None:
    done = run_python(
        "-c",
        "import sys\n"
        "from fewer.main import COMMANDS, main\n"
        "try: main(['check', '--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in COMMANDS if f'fewer.{name}' in sys.modules])",
    )
    assert done.stdout.endswith("['check']\n"), done.stderr
