"""The model class for lm-eval, called as lm-eval does."""
import types

import numpy
import pytest

import lowkey

pytest.importorskip("lm_eval")
import lowkey.lm_eval  # noqa: E402  pylint: disable=wrong-import-position
from lm_eval.api.registry import get_model  # noqa: E402  pylint: disable=wrong-import-position


def requests(*arguments):
    return [types.SimpleNamespace(args=args) for args in arguments]


def new(path, batch_size=1, **options):
    text = ",".join(f"{key}={value}" for key, value in {"model": path, "threads": 1, **options}.items())
    return get_model("lowkey").create_from_arg_string(text, {"batch_size": batch_size, "device": None})


def plain_score(model, context, continuation, kv="f16", steps=False):
    """The same by the most direct way: token by token. steps: the context, too; else it is a prompt."""
    session, total = lowkey.Session(model, kv), 0.0
    for token in context if steps else []:
        session.eval([token])
    session.sync(context)
    for token in continuation:
        total += session.logprob(token)
        session.eval([token])
    return total


@pytest.mark.parametrize("context", ["prompt", "steps"])
def test_loglikelihood(chat_path, model, context):
    lm = new(chat_path, kv="f16", context=context)
    pairs = [("hello hello", " world"), ("hello hello", " hell"), ("other text", " a"), ("", "hello"), ("a ", "b c d")]
    for (text, rest), (value, greedy) in zip(pairs, lm.loglikelihood(requests(*pairs), disable_tqdm=True)):
        tokens = model.tokenize(text + rest)
        n = len(model.tokenize(text.rstrip()))
        if not text:
            tokens, n = [lm.prefix_token_id] + tokens, 1
        assert value == pytest.approx(plain_score(model, tokens[:n], tokens[n:], steps=context == "steps"), abs=2e-3)
        assert isinstance(greedy, bool)


def test_greedy_flag(chat_path, model):
    session = lowkey.Session(model, "best-3")
    lm = new(chat_path, kv="best-3")
    stream = session.stream("hello", max_tokens=12)
    list(stream)
    context = model.tokenize("hello")
    request = [(("", ""), context, stream.tokens), (("", ""), context, stream.tokens[:-1] + [3])]
    results = lm._loglikelihood_tokens(request, disable_tqdm=True)
    assert [greedy for _, greedy in results] == [True, stream.tokens[-1] == 3]


def test_context_is_read_through_the_cache(chat_path, model):
    """In steps, the context is compressed before it is used; as a prompt, the first token is exact."""
    context, answer = [i % 250 for i in range(1500)], [7]
    exact = plain_score(model, context, answer, "f16")
    prompt = new(chat_path, kv="best-2", context="prompt")
    steps = new(chat_path, kv="best-2", context="steps")
    (in_prompt, _), = prompt._loglikelihood_tokens([(("", ""), context, answer)], disable_tqdm=True)
    (in_steps, _), = steps._loglikelihood_tokens([(("", ""), context, answer)], disable_tqdm=True)
    assert in_prompt == pytest.approx(exact, abs=1e-3)
    assert abs(in_steps - exact) > 10 * abs(in_prompt - exact)


def test_contexts_are_prefilled_once(chat_path, monkeypatch):
    lm, n = new(chat_path, kv="best-3"), []
    sync = lowkey.Session.sync
    monkeypatch.setattr(lowkey.Session, "sync", lambda self, tokens, *rest: n.append(1) or sync(self, tokens, *rest))
    pairs = [(context, answer) for answer in (" a b", " c d", " e f") for context in ("one", "two")]
    together = lm.loglikelihood(requests(*pairs), disable_tqdm=True)
    assert len(n) == 2
    alone = [new(chat_path, kv="best-3").loglikelihood(requests(pair), disable_tqdm=True)[0] for pair in pairs]
    assert [value for value, _ in together] == pytest.approx([value for value, _ in alone], abs=1e-4)


def test_rolling(chat_path, model):
    text = "hello world, this is a text. " * 20
    tokens = model.tokenize(text, begin=False)
    whole = new(chat_path, kv="f16").loglikelihood_rolling(requests((text,)), disable_tqdm=True)
    bos = new(chat_path).prefix_token_id
    assert whole[0] == pytest.approx(plain_score(model, [bos], tokens), rel=1e-3)
    windows = new(chat_path, kv="f16", n_ctx=64).loglikelihood_rolling(requests((text,)), disable_tqdm=True)
    assert numpy.isfinite(windows[0]) and windows != whole


def test_too_long_contexts_are_cut(chat_path):
    lm = new(chat_path, kv="f16", n_ctx=32)
    (value, _), = lm.loglikelihood(requests(("word " * 200, " end")), disable_tqdm=True)
    assert numpy.isfinite(value)


def test_generate_until(chat_path, model):
    lm = new(chat_path, kv="best-3")
    full = lowkey.Session(model, "best-3").generate("hello", max_tokens=20)
    options = {"until": [full[8:10]], "max_gen_toks": 20, "do_sample": False}
    answers = lm.generate_until(requests(("hello", options), ("hello", {"max_gen_toks": 20, "until": []})), disable_tqdm=True)
    assert answers == [full[: full.index(full[8:10])], full]


@pytest.mark.parametrize("reuse_prefix", [False, True])
def test_batches(chat_path, reuse_prefix):
    """Answers that are generated together are those of one after the other; they end at different times."""
    texts = ["hello there", "hello you", "hello", "hello all"]
    options = [{"until": [], "max_gen_toks": n} for n in (20, 5, 1, 12)]
    options[3]["min_gen_toks"] = 3
    asked = requests(*zip(texts, options))
    answers = [new(chat_path, kv="best-3", batch_size=n, reuse_prefix=reuse_prefix).generate_until(asked, disable_tqdm=True) for n in (1, 3)]
    assert answers[0] == answers[1] and all(answers[0])


def test_chat_template(chat_path, model):
    lm = new(chat_path)
    messages = [{"role": "user", "content": "hello"}]
    text = lm.apply_chat_template(messages)
    assert lm.tok_encode(text) == model.chat_tokens(messages)
    assert lm.chat_template(True) == model.chat_template and lm.tokenizer_name


def test_wrong_options(chat_path):
    with pytest.raises(ValueError, match="'prompt' or 'steps'"):
        new(chat_path, context="fast")
    with pytest.raises(ValueError, match="batch_size is 'auto'"):
        new(chat_path, batch_size="auto")
    with pytest.raises(ValueError, match="batch_size is 0"):
        new(chat_path, batch_size=0)
