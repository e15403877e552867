"""Router files, and the text embedding that goes with them."""

from __future__ import annotations

from pathlib import Path

from engine.protocol.errors import SetupError
from policies.router_model import MAX_BYTES, Router, RouterModel, read


def read_model(path: Path) -> RouterModel:
    """Raises `SetupError`, in a sentence about the file, for one that is none of ours."""
    try:
        with path.open("rb") as file:
            return read(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SetupError(f"{path} {error}.") from error


def router_of(model: RouterModel) -> Router:
    """Loads the embedding. Raises `SetupError` when that is not installed, or is another one than
    the model was trained with."""
    from gateway.embedding import bundled

    embed = bundled()
    if (model.embedding, len(model.weak.dimensions)) != (embed.fingerprint, embed.dimensions):
        raise SetupError("The router was trained with another text embedding; train it again.")
    return Router(model, lambda text: embed(text).tolist())
