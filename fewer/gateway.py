"""`fewer gateway`: the gateway alone, in front of engines or upstreams that run already."""

from __future__ import annotations

import argparse

from fewer import options, ports
from fewer.lifeline import Lifeline
from fewer.paths import engine_token


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)
    options.add_model(parser)
    options.add_listening(parser)
    parser.add_argument(
        "--engine-port",
        type=int,
        default=options.DEFAULT_ENGINE_PORT,
        metavar="PORT",
        help="where the first gguf model's engine listens on this machine (default: %(default)s)",
    )
    options.add_supervised(parser)


def run(arguments: argparse.Namespace) -> int:
    from gateway.server import run as serve

    lifeline = Lifeline() if arguments.supervised else None
    config = options.with_listening(options.load_config(arguments), arguments)
    serve(
        config,
        host=config.server.host,
        port=ports.claim(config.server.host, config.server.port, "--port"),
        workers=config.server.workers,
        engine_port=arguments.engine_port,
        engine_token=engine_token(),
        on_ready=lifeline.ready if lifeline else None,
    )
    return 0
