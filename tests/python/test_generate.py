"""Generating: the same tokens as the program, stops, sampling."""
import json
import subprocess

import numpy
import pytest

import lowkey


@pytest.mark.parametrize("kv", ["f16", "best-3"])
def test_greedy_is_what_the_program_says(model, chat_path, program, kv):
    prompt = "hello hello hello"
    said = subprocess.run([program, "run", "-m", chat_path, "-t", "1", "--kv", kv, "-p", prompt, "-n", "40", "--greedy",
                           "--json"], check=True, capture_output=True, text=True).stdout
    session = lowkey.Session(model, kv)
    stream = session.stream(prompt, max_tokens=40)
    text = "".join(stream)
    assert text == json.loads(said)["text"]
    assert len(stream.tokens) == 40 and stream.finish_reason == "length"
    assert session.generate(prompt, max_tokens=40) == text


def test_stop(model, session):
    full = session.generate("hello", max_tokens=30)
    stop = full[10:14]
    stream = session.stream("hello", max_tokens=30, stop=[stop])
    pieces = list(stream)
    assert "".join(pieces) == full[: full.index(stop)]
    assert stream.finish_reason == "stop"
    # A text that only begins like a stop text is not held for ever.
    assert session.generate("hello", max_tokens=30, stop=[full[-3:] + "never"]) == full


def test_context_length_ends_an_answer(model):
    session = lowkey.Session(model, "f16", n_ctx=16)
    stream = session.stream([1, 2, 3, 4], ignore_eos=True)
    list(stream)
    assert stream.finish_reason == "length" and len(stream.tokens) == 13
    assert session.n_tokens == 16


def test_seed(session):
    def say(seed):
        return session.generate("hello", max_tokens=20, temperature=1.5, seed=seed)

    assert say(1) == say(1) != say(2)
    assert session.generate("hello", max_tokens=20, **lowkey.CHAT_SAMPLING)


def test_schema(session):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    assert json.loads(session.generate("hello", max_tokens=60, json_schema=schema))["n"] in (1, 2)
    assert session.generate("hello", grammar='root ::= "yes"') == "yes"


def test_bias(model, session):
    token = model.tokenize("hello", begin=False)[0]
    stream = session.stream("a", max_tokens=5, logit_bias={token: 1e5})
    list(stream)
    assert set(stream.tokens) == {token}


def test_wrong_options(session):
    with pytest.raises(TypeError, match="'temprature'"):
        session.generate("a", temprature=1)
    with pytest.raises(lowkey.FormatError):
        session.generate("a", grammar="root ::= (")
    with pytest.raises(TypeError, match="not both"):
        session.generate("a", grammar='root ::= "a"', json_schema={})


def test_chat_reuses_the_conversation(model, session):
    messages = [{"role": "user", "content": "hello"}]
    answer = session.chat(messages, max_tokens=8)
    n = session.n_tokens
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "again"}]
    assert 0 < session.reusable(model.chat_tokens(messages)) <= n
    assert isinstance(session.chat(messages, max_tokens=8), str)


def test_cancel_a_stream(session):
    stream = session.stream("hello", max_tokens=100, ignore_eos=True)
    next(stream)
    session.cancel()
    with pytest.raises(lowkey.CancelledError):
        list(stream)


def test_batch(model):
    """A batch gives each session what evaluating it alone gives, and one that fails does not affect the others."""
    tokens = [model.tokenize(text) for text in ("hello there", "hello", "you")]
    alone = [lowkey.Session(model, "best-3", n_ctx=16) for _ in tokens]
    together = [lowkey.Session(model, "best-3", n_ctx=16) for _ in tokens]
    for session, some in zip(alone, tokens):
        session.eval(some)
    batch = lowkey.Batch(model)
    batch.eval(together, tokens)
    for one, other in zip(alone, together):
        assert one.tokens == other.tokens and numpy.allclose(one.logits, other.logits, rtol=1e-3, atol=1e-3)
    with pytest.raises(lowkey.FullError):
        batch.eval(together, [[1], [1] * 16, [1]])
    assert [session.n_tokens for session in together] == [len(tokens[0]) + 1, len(tokens[1]), len(tokens[2]) + 1]
    with pytest.raises(ValueError, match="3 sessions, but tokens of 1"):
        batch.eval(together, [[1]])
