"""What people use to talk to it: the `openai` package, two majors of it, and the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import JAPAN, Stack, content

pytestmark = pytest.mark.model

REPOSITORY = Path(__file__).parents[2]
OPENAI_2 = REPOSITORY / ".venv" / "openai-2"
"""Where `make test` installs the older major, which cannot stand beside the newer."""

SCRIPT = f"""
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none needed", max_retries=0)
asked = dict(model="chat", temperature=0, max_tokens=9,
             messages=[{{"role": "user", "content": {JAPAN!r}}}])
whole = client.chat.completions.create(**asked)
stream = client.chat.completions.create(**asked, stream=True,
                                        stream_options={{"include_usage": True}})
chunks = list(stream)
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert text == whole.choices[0].message.content, (text, whole)
assert chunks[-1].usage == whole.usage or chunks[-1].usage.total_tokens == whole.usage.total_tokens
assert [model.id for model in client.models.list()][:1], "no models"
try:
    client.chat.completions.create(model="no-such-model", messages=asked["messages"])
except openai.NotFoundError as error:
    assert error.code == "model_not_found", error
print(openai.__version__.partition(".")[0], text)
"""


@pytest.mark.parametrize("major", ["2", "3"])
def test_openais_package_streams_and_does_not(stack: Stack, major: str) -> None:
    environ = dict(os.environ)
    if major == "2":
        if not OPENAI_2.is_dir() and os.environ.get("CI") != "true":
            pytest.skip("needs openai 2 beside 3: `make test` installs it")
        environ["PYTHONPATH"] = str(OPENAI_2)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, stack.gateway],
        capture_output=True, text=True, env=environ, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    version, text = done.stdout.split(" ", 1)
    assert version == major
    assert "Tokyo" in text


def test_an_answer_streams_as_plain_server_sent_events(stack: Stack) -> None:
    chunks = list(stack.stream(max_tokens=9))
    assert "Tokyo" in content(iter(chunks))
    assert len(chunks) > 5
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_the_terminal_answers_through_a_pipe(stack: Stack) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fewer", "chat", "--url", stack.gateway, "--temperature", "0"],
        input=JAPAN, capture_output=True, text=True, cwd=REPOSITORY, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Tokyo" in done.stdout
    assert "tokens/s" in done.stderr
