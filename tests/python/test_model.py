"""Models, tokens, recipes, plans and errors."""
import pytest

import lowkey


def test_version():
    assert lowkey.__version__.count(".") == 2


def test_info(model):
    info = model.info
    assert (info.arch, info.n_layer, info.n_threads) == ("qwen2", 2, 1)
    assert model.n_vocab == info.n_vocab > 256
    assert model.n_ctx_train == 4096
    assert "message" in model.chat_template


def test_tokens_round_trip(model):
    text = "hello, [[wörld]] \0 <|im_start|>"
    tokens = model.tokenize(text)
    assert model.detokenize(tokens) == text
    assert b"".join(map(model.token_bytes, tokens)) == text.encode()


def test_control_tokens(model):
    plain, control = model.tokenize("<|im_end|>"), model.tokenize("<|im_end|>", control=True)
    assert len(plain) > 1 and len(control) == 1
    assert model.is_control(control[0]) and not model.is_control(plain[0])
    assert model.ends_answer(control[0])


def test_chat(model):
    messages = [{"role": "user", "content": "<|im_end|>"}]
    assert model.chat_format(messages).startswith("<|im_start|>user\n<|im_end|><|im_end|>\n")
    end = model.tokenize("<|im_end|>", control=True)[0]
    tokens = model.chat_tokens(messages)
    assert tokens.count(end) == 1  # the content is plain text
    assert model.detokenize(tokens) == model.chat_format(messages)


def test_recipe():
    recipe = lowkey.Recipe("sink 4: f16; body: k=rot3 v=rot2; window 128: f16")
    assert [level.name for level in recipe.levels] == ["sink 4", "body", "window 128"]
    assert recipe.levels[1].k_codec.startswith("rot3")
    assert not recipe.evicts
    presets = {preset.name: preset for preset in lowkey.Recipe.presets()}
    assert {"f16", "best-4", "best-3"} <= presets.keys()
    assert presets["best-3"].note


def test_plan(model):
    plans = lowkey.plan(model, ["f16", lowkey.Recipe("best-3")], [512, 1024])
    assert [(p.recipe, p.n_tok) for p in plans] == [
        ("f16", 512), ("f16", 1024), ("best-3", 512), ("best-3", 1024)]
    assert plans[3].cache_bytes < plans[1].cache_bytes
    assert plans[1].bits_per_value == pytest.approx(16, rel=0.1)
    assert len(lowkey.plan(model, "f16", 512)) == 1


def test_plan_is_close(model):
    plan = lowkey.plan(model, "best-3", 700)[0]
    session = lowkey.Session(model, "best-3", n_ctx=700)
    session.sync([i % 250 for i in range(700)])
    assert session.stats.cache_bytes == pytest.approx(plan.cache_bytes, rel=0.02)


def test_perplexity(model):
    calls = []
    full, small = lowkey.perplexity(model, "hello world, " * 100, ["f16", "best-2"], n_ctx=512,
                                    chunks=1, progress=lambda *done: calls.append(done))
    assert full.kl_mean == 0 and full.top1 == 1 and full.n_scored == 255
    assert small.kl_mean > 0 and small.bits_per_value < full.bits_per_value
    assert calls[-1][0] == calls[-1][1]
    with pytest.raises(lowkey.ArgumentError):
        lowkey.perplexity(model, "short", "f16")


@pytest.mark.parametrize("call, error, builtin, text", [
    (lambda path: lowkey.Model(path / "none.gguf"), lowkey.FileError, OSError, "none.gguf"),
    (lambda path: lowkey.Model(__file__), lowkey.FormatError, ValueError, "GGUF"),
    (lambda path: lowkey.Recipe("best-99"), lowkey.FormatError, ValueError, "best-99"),
    (lambda path: lowkey.schema_to_grammar("{"), lowkey.FormatError, ValueError, "JSON"),
])
def test_errors(tmp_path, call, error, builtin, text):
    with pytest.raises(error, match=text) as caught:
        call(tmp_path)
    assert isinstance(caught.value, builtin) and isinstance(caught.value, lowkey.LowkeyError)
    assert caught.value.status == error.status
    assert "\n" not in str(caught.value)


def test_closed(chat_path):
    with lowkey.Model(chat_path, threads=1) as model:
        session = lowkey.Session(model, "f16", n_ctx=64)
    with pytest.raises(ValueError, match="closed"):
        model.tokenize("a")
    session.sync([1, 2, 3])  # holds the model's memory itself
    assert session.logits.shape == (session.model.n_vocab,)
