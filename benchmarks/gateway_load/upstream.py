"""The upstream's process: four ports, WebSocket and HTTP, each at the pace and at once.

    python -m benchmarks.gateway_load.upstream PACE_MS STEP_MS

Prints its ports as one line of JSON once they can be connected to, and serves until killed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json

import uvloop

from benchmarks.gateway_load.engine_face import Engine
from benchmarks.gateway_load.openai_face import OpenAI

HOST = "127.0.0.1"
BACKLOG = 2048


async def serve(pace_s: float, step_s: float) -> None:
    faces: dict[str, Engine | OpenAI] = {
        "engine_paced": Engine(pace_s, step_s),
        "engine_at_once": Engine(0, step_s),
        "openai_paced": OpenAI(pace_s, step_s),
        "openai_at_once": OpenAI(0, step_s),
    }
    ports = {}
    for name, face in faces.items():
        server = await asyncio.get_running_loop().create_server(
            face.connection, HOST, 0, backlog=BACKLOG
        )
        ports[name] = server.sockets[0].getsockname()[1]
    print(json.dumps(ports), flush=True)
    # A collection would make every stream late at once, and there are no cycles worth it.
    gc.freeze()
    gc.disable()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("pace_ms", type=float)
    parser.add_argument("step_ms", type=float)
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.pace_ms / 1000, arguments.step_ms / 1000))
