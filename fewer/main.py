"""The command line's entry: finds the command, imports that module alone, reports errors.

A command is one module `fewer/<name>.py` with two functions:

    configure(parser)          adds the command's arguments; a parent of commands nests its own
    run(arguments) -> int      does the work and returns the exit code

Such a module imports only light things at its top and the heavy ones inside `run`, so that
`fewer COMMAND --help` answers at once. A person's mistake is raised as a `SetupError` and
printed as one line.

Exit codes: 0 done, 1 failed, 2 called wrongly, 130 ended by Ctrl-C.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from fewer import options

COMMANDS = {
    "serve": "start everything: the engine of each model, and the gateway",
    "engine": "start one engine alone",
    "gateway": "start the gateway alone",
    "chat": "talk to a running gateway in the terminal",
    "models": "list, pull, add and remove models",
    "fit": "say what of a model fits into this machine or a named GPU",
    "check": "validate a configuration file and summarise it",
    "keys": "create, list, limit, rotate and revoke clients' keys",
    "route": "train a router between two models, and see what it is worth",
    "replay": "recorded requests under another configuration: what would change",
}

EXAMPLES = """\
examples:
  fewer serve                               everything, on http://127.0.0.1:8080
  fewer serve --model ./qwen2.5-0.5b.gguf   the same with another model
  fewer chat                                talk to it here
  fewer check --config fewer.yaml           find mistakes before they are served
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. `argv` is without the program's name; None takes the process's own."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else ""
    parser, module = _parser(command)
    if command and command not in COMMANDS and not command.startswith("-"):
        parser.error(_no_such_command(command))
    arguments, unknown = parser.parse_known_args(words)
    used: argparse.ArgumentParser = vars(arguments).pop("parser")  # workers get the arguments
    if unknown:
        used.error(f"there is no argument {' '.join(unknown)}")
    if module is None:
        parser.print_help()
        return 0
    return _run(module, arguments)


def _parser(command: str) -> tuple[argparse.ArgumentParser, ModuleType | None]:
    """The parser with the arguments of `command` alone, and that command's module."""
    parser = argparse.ArgumentParser(
        prog="fewer",
        description="An LLM serving stack that generates less and proves it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    module = None
    for name, summary in COMMANDS.items():
        child = options.add_action(commands, name, summary)
        child.set_defaults(parser=child)
        if name == command:
            module = importlib.import_module(f"fewer.{name}")
            module.configure(child)
    return parser, module


def _no_such_command(command: str) -> str:
    close = difflib.get_close_matches(command, COMMANDS, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(COMMANDS)}."
    return f"there is no command {command!r}. {hint}"


class _Version(argparse.Action):
    """Reading the installed metadata costs more than everything else, so only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"fewer {version('fewer')}")
        parser.exit()


def _run(module: ModuleType, arguments: argparse.Namespace) -> int:
    from engine.protocol.errors import FewerError

    try:
        return int(module.run(arguments))
    except FewerError as error:
        print(f"fewer: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output left (`fewer models list | head`). Python would complain
        # once more while it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
