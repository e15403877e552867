"""`fewer gateway`: the gateway alone, in front of engines or upstreams that run already."""

from __future__ import annotations

import argparse
import logging
from functools import partial

from fewer import options, ports
from fewer.lifeline import Lifeline
from fewer.paths import engine_token


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)
    options.add_model(parser)
    options.add_listening(parser)
    options.add_engine_port(parser, "where the first gguf model's engine listens on this machine")
    options.add_supervised(parser)


def run(arguments: argparse.Namespace) -> int:
    from gateway.server import run as serve

    lifeline = Lifeline() if arguments.supervised else None
    source = options.source(arguments)
    config = source.load()
    server = options.with_listening(config, arguments).server
    port = ports.claim(server.host, server.port, "--port")
    serve(
        config,
        host=server.host,
        port=port,
        workers=server.workers,
        engine_port=arguments.engine_port,
        engine_token=engine_token(),
        source=source,
        on_ready=lifeline.ready if lifeline else partial(_tell_address, server.host, port),
    )
    return 0


def _tell_address(host: str, port: int) -> None:
    """To who started the gateway alone: `fewer serve` has a banner of its own."""
    logging.getLogger("fewer.gateway").info(
        "Serving at http://%s.", ports.address_to_try(host, port)
    )
