"""The reference executor on the bundled model: `transformers`' tokens, and the same bits always."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from transformers import LlamaConfig, LlamaForCausalLM

from engine.models.registry import ModelOptions
from engine.protocol.sampling import Sampling
from engine.runner.reference import ReferenceExecutor
from engine.text.tokenizer import Tokenizer
from engine.weights.gguf import GgufFile
from tests.fakes.steps import batch_of, chunks, generate, lanes_of

pytestmark = pytest.mark.model

NEW_TOKENS = 64
LONGEST = 160
MARGIN = 1e-3
PROMPTS = (
    "The capital of Japan is",
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "Water boils at a lower temperature on a mountain because",
    "La Révolution française a commencé en",
    "从前有一座山，山里有一座庙，",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to",
    "SELECT name, age FROM people WHERE",
    "The three laws of thermodynamics are:\n1.",
    "Q: What is a prime number?\nA:",
    "<html>\n<head>\n<title>",
    "In 1969, Neil Armstrong",
    "To make bread you need flour, water,",
    "The opposite of hot is cold. The opposite of tall is",
    "Zażółć gęślą jaźń",
    "import numpy as np\n\nx = np.",
    "Photosynthesis is the process by which",
    "Roses are red, violets are",
    "🙂 The weather today is",
)


@pytest.fixture(scope="module")
def file(model_path: Path) -> GgufFile:
    return GgufFile.open(model_path)


@pytest.fixture(scope="module")
def prompts(file: GgufFile) -> list[list[int]]:
    tokenizer = Tokenizer.from_gguf(file.metadata)
    return [tokenizer.encode(text) for text in PROMPTS]


@pytest.fixture(scope="module")
def executor(file: GgufFile) -> Iterator[ReferenceExecutor]:
    executor = ReferenceExecutor(file, ModelOptions.from_gguf(file), threads=1)
    executor.allocate(32 * LONGEST // 16)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def together(executor: ReferenceExecutor, prompts: list[list[int]]) -> list[list[int]]:
    """What the prompts give when all run in one batch, greedily."""
    return generate(executor, lanes_of(prompts, LONGEST), NEW_TOKENS)


def hugging_face(file: GgufFile) -> Any:
    """The same weights in `transformers`, read and reordered by none of our code but the header."""
    metadata = file.metadata
    heads, kv_heads = (metadata[f"llama.attention.head_count{end}"] for end in ("", "_kv"))
    config = LlamaConfig(
        vocab_size=metadata["llama.vocab_size"],
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        tie_word_embeddings=True,
    )
    names = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj"}  # fmt: skip
    state = {}
    for name, info in file.tensors.items():
        values = np.array(dequantize(file.raw(name), info.type), np.float32)
        part = name.removesuffix(".weight").rsplit(".", 1)[-1]
        if part in ("attn_q", "attn_k"):
            pairs = values.reshape(heads if part == "attn_q" else kv_heads, -1, 2, values.shape[1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        if part in names:
            layer = name.split(".")[1]
            key = f"model.layers.{layer}.{names[part]}.weight"
        else:
            key = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[
                part
            ] + ".weight"
        state[key] = torch.from_numpy(values)
    with torch.device("meta"):
        network = LlamaForCausalLM(config)
    network.load_state_dict(state, strict=False, assign=True)
    network.tie_weights()
    # The rotary table is no parameter: it was made on the meta device with the rest.
    network.model.rotary_emb = type(network.model.rotary_emb)(config)
    return network.train(False)


def test_greedy_tokens_equal_transformers(
    file: GgufFile, prompts: list[list[int]], together: list[list[int]]
) -> None:
    """One teacher-forced pass a prompt. A near-tie within `MARGIN` proves nothing either way."""
    network = hugging_face(file)
    torch.set_num_threads(1)
    decided = 0
    for prompt, output in zip(prompts, together, strict=True):
        with torch.inference_mode():
            logits = network(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        best = logits.topk(2).values
        clear = (best[:, 0] - best[:, 1]) > MARGIN
        assert torch.equal(logits.argmax(-1)[clear], torch.tensor(output)[clear])
        decided += int(clear.sum())
    assert decided > 0.95 * NEW_TOKENS * len(prompts)


def test_alone_and_in_small_chunks_gives_the_same_tokens(
    executor: ReferenceExecutor, prompts: list[list[int]], together: list[list[int]]
) -> None:
    some = [1, 5, 9]
    for index in some[:2]:
        lanes = lanes_of([prompts[index]], LONGEST, shuffle=index)
        assert generate(executor, lanes, 12) == [together[index][:12]]
    lanes = lanes_of([prompts[index] for index in some], LONGEST, shuffle=3)
    chunked = generate(executor, lanes, 12, budget_tokens=5)
    assert chunked == [together[index][:12] for index in some]


def test_bits_of_chunks_and_company(
    executor: ReferenceExecutor, prompts: list[list[int]], together: list[list[int]]
) -> None:
    """Logits of one position, bit for bit: chunks of 16, 64, 512, alone, beside others."""
    text = prompts[1] + together[1] + together[2][:40]
    expected: Any = None
    for budget_tokens, company in ((512, 0), (64, 0), (16, 0), (48, 3), (512, 7)):
        others = [together[index] for index in range(company)]
        lanes = lanes_of([*others, text], LONGEST, shuffle=budget_tokens)
        logits: Any = None
        for parts in chunks(lanes, budget_tokens):
            result = executor.logits(batch_of(parts)).numpy()
            ended = [lane for lane, _ in parts if lane.computed == len(lane.tokens)]
            logits = result[ended.index(lanes[-1])] if lanes[-1] in ended else logits
        expected = logits if expected is None else expected
        assert logits is not None
        assert np.array_equal(logits, expected)


def test_bits_of_two_threads(
    file: GgufFile, executor: ReferenceExecutor, prompts: list[list[int]]
) -> None:
    def logits() -> Any:
        lanes = lanes_of(prompts[:3], LONGEST)
        return executor.logits(batch_of([(lane, len(lane.tokens)) for lane in lanes])).numpy()

    one = logits()
    executor._threads = 2
    try:
        assert np.array_equal(logits(), one)
    finally:
        executor._threads = 1
        torch.set_num_threads(1)


def test_seeded_sampling_is_the_same_together_and_alone(
    executor: ReferenceExecutor, prompts: list[list[int]]
) -> None:
    def run(chosen: list[int]) -> list[list[int]]:
        lanes = lanes_of([prompts[index] for index in chosen], LONGEST, shuffle=len(chosen))
        for index, lane in zip(chosen, lanes, strict=True):
            lane.sampling, lane.seed = Sampling(temperature=0.9, top_p=0.95), 77 + index
        return generate(executor, lanes, 8)

    everyone = run(list(range(6)))
    assert [run([index])[0] for index in (0, 3)] == [everyone[0], everyone[3]]
