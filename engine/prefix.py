"""Names of KV blocks: what a full block holds, chained from the root of its tenant."""

from __future__ import annotations

from hashlib import blake2b

KEY_BYTES = 16


def root_key(*parts: str) -> bytes:
    """The parent of first blocks: a hash over tenant salt, model, and how KV is stored.

    Two requests share blocks only under the same root, so another salt can never hit.
    """
    digest = blake2b(digest_size=KEY_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        # The length goes first, so that no two lists of parts read the same.
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def child_key(parent: bytes, tokens: bytes) -> bytes:
    """The key of a full block: `tokens` are its BLOCK_TOKENS ids as int32 bytes."""
    return blake2b(parent + tokens, digest_size=KEY_BYTES).digest()
