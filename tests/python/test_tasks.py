"""The local tasks for lm-eval: their documents, figures, and what the model class does with them."""
import importlib.util
import json
import pathlib
import types

import pytest

import lowkey

pytest.importorskip("lm_eval")
import lowkey.evaluate  # noqa: E402  pylint: disable=wrong-import-position
import lowkey.lm_eval  # noqa: E402  pylint: disable=wrong-import-position

spec = importlib.util.spec_from_file_location("local_data", pathlib.Path(lowkey.evaluate.TASKS, "local_data.py"))
local_data = importlib.util.module_from_spec(spec)
spec.loader.exec_module(local_data)


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("LOWKEY_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def model_args(chat_path):
    return {"model": str(chat_path), "n_ctx": 2048, "threads": 1}


def test_orders_are_those_of_lowkey_eval():
    """Figures that `lowkey eval` made with a seed, before lm-eval asked these questions, are of the same items."""
    assert local_data.Random(1, "summary").permutation(8) == [7, 0, 6, 5, 4, 1, 3, 2]
    assert local_data.Random(2, "summary").permutation(8) != local_data.Random(1, "gsm8k").permutation(8)


@pytest.mark.parametrize("layout, texts", [
    ("question", ["Question: a _ b\nAnswer: x y", "Question: a _ b\nAnswer: x z"]),
    ("sentence", ["a _ b x y", "a _ b x z"]),
    ("gap", ["a x y b", "a x z b"]),
])
def test_choices(data, chat_path, layout, texts):
    write_lines(data / "multichoice" / "q.jsonl", [{"q": "a _ b", "choices": ["x y", "x z"], "answer": 1}])
    doc = local_data.questions("q", layout, str(chat_path))["test"][0]
    assert [a + b for a, b in zip(doc["given"], doc["scored"])] == texts
    if layout == "gap":
        assert doc["scored"][0] == doc["scored"][1] and doc["scored"][0].endswith("b")
    else:
        assert doc["given"][0] == doc["given"][1] and doc["given"][0].rstrip().endswith("x")


def test_choices_are_scored():
    doc = {"answer": 1, "n_scored": [1, 4]}
    assert local_data.score_choices(doc, [(-3.0, False), (-4.0, False)]) == {"acc": 0, "acc_norm": 1, "answer_nll": 1}


@pytest.mark.parametrize("text, number", [
    ("The 3 of them have $1,234.50.", 1234.5), ("12 + 3 = 15\n#### 15\nand 99", 15), ("#### -1,000,000", -1e6),
    ("It is 5.", 5), ("10, 20", 20), ("no number, - , . ####", None)])
def test_numbers(text, number):
    assert local_data.answer_number(text) == number


def test_problems(data, chat_path):
    write_lines(data / "gsm8k" / "test.jsonl", [{"question": "2 and 3?", "answer": "2+3=<<2+3=5>>5\n#### 5"},
                                                {"question": "Half of 2,000?", "answer": "#### 1,000"}])
    write_lines(data / "gsm8k" / "train.jsonl", [{"question": "1 and 1?", "answer": "1+1=<<1+1=2>>2\n#### 2"}])
    splits = local_data.problems("gsm8k", str(chat_path))
    two = next(doc for doc in splits["test"] if doc["key"] == "line 1")
    assert two["right"] == " 2+3=5\n#### 5" and two["text"] == two["prompt_ends_before"] == "Question: 2 and 3?"
    assert splits["train"][0]["solution"] == "1+1=2\n#### 2"
    assert local_data.score_problem(two, [" 48 / 10\n#### 5\nQuestion: 6"]) == {"exact_match": 1}
    assert local_data.score_problem(two, [" none"]) == {"exact_match": 0}


def test_summaries(data, chat_path, model):
    words = " ".join(f"word{i}" for i in range(2000))
    write_lines(data / "summary" / "test.jsonl", [{"query": "What?", "reference": "Things.", "document": words}])
    doc = local_data.summaries(str(chat_path), n_ctx=1000)["test"][0]
    assert "word0 " in doc["text"] and "[...]" in doc["text"] and "word1999" in doc["text"]
    prompt = model.chat_format([{"role": "user", "content": doc["text"]}]) + "Answer:"
    assert 950 < len(model.tokenize(prompt, control=True)) + local_data.SUMMARY_TOKENS <= 1000
    write_lines(data / "summary" / "test.jsonl",
                [{"query": f"Which of {c}?", "reference": f"Of {c}.", "document": words.replace("word", c)} for c in "ab"])
    for shot in local_data.summaries(str(chat_path), n_ctx=1000, shots=1)["test"]:
        mine, other = ("b", "a") if "Which of b?" == shot["prompt_ends_before"][-11:] else ("a", "b")
        example, given = shot["text"].split(f"\nAnswer: Of {other}.\n\n")
        assert f"{other}1999" in example and f"Which of {other}?" in example and f"{mine}0 " not in example
        assert f"{mine}0 " in given and f"{mine}1999" in given and f"{other}0 " not in given
        assert 900 < len(model.tokenize(shot["text"] + "\nAnswer:", control=True)) + local_data.SUMMARY_TOKENS <= 1000
    with pytest.raises(ValueError, match="no 2 questions about other documents"):
        local_data.summaries(str(chat_path), n_ctx=1000, shots=2)
    pytest.importorskip("rouge_score")
    scores = local_data.score_summary(doc, [" Things happen.\n\nNo."])
    assert scores["rouge1"] == pytest.approx(2 / 3) and scores["rouge2"] == 0


def test_question_is_read_through_the_cache(model_args, model):
    """What precedes the question is a prompt; the rest is evaluated, and the answer is scored token by token."""
    lm = lowkey.lm_eval.LowkeyLM(**model_args, kv="best-2")
    head, tail, answer = "A long text. " * 60, "Question: why? Answer:", " because it is"
    request = types.SimpleNamespace(args=(head + tail, answer), doc={"prompt_ends_before": "Question:"})
    (value, _), = lm.loglikelihood([request], disable_tqdm=True)
    tokens, n = lm.tok_encode(head + tail), len(lm.tok_encode(head))
    session, total = lowkey.Session(model, "best-2", n_ctx=2048), 0.0
    session.sync(tokens[:n])
    session.eval(tokens[n:])
    for token in lm.tok_encode(head + tail + answer)[len(tokens):]:
        total += session.logprob(token)
        session.eval([token])
    assert value == pytest.approx(total, abs=1e-3)
    whole = lowkey.lm_eval.LowkeyLM(**model_args, kv="best-2", split_prompts=False)
    (other, _), = whole.loglikelihood([request], disable_tqdm=True)
    assert other != pytest.approx(value, abs=1e-6)


def test_least_length(model_args, model):
    lm = lowkey.lm_eval.LowkeyLM(**model_args, kv="best-3")
    full = lowkey.Session(model, "best-3").generate("hello", max_tokens=20)

    def generate(**options):
        request = types.SimpleNamespace(args=("hello", {"max_gen_toks": 20, "do_sample": False, **options}))
        return lm.generate_until([request], disable_tqdm=True)[0]

    assert generate(until=[], min_gen_toks=20) == full
    stop = full[8:10]
    short = full[: full.index(stop)]
    assert generate(until=[stop]) == short
    longer = generate(until=[stop], min_gen_toks=20)
    assert stop not in longer and longer.startswith(short) and len(longer) > len(short)


def test_answers_that_are_begun_are_continued(model_args, model):
    lm = lowkey.lm_eval.LowkeyLM(**model_args)
    user = {"role": "user", "content": "hello"}
    text = lm.apply_chat_template([user, {"role": "assistant", "content": "Answer:"}], add_generation_prompt=False)
    assert text == model.chat_format([user]) + "Answer:"


def test_results_file(data, model_args, tmp_path):
    write_lines(data / "multichoice" / "piqa.jsonl",
                [{"q": f"Grass {i} is", "choices": ["green.", "loud."], "answer": i % 2} for i in range(4)])
    lines = list(lowkey.evaluate.compare("piqa", ["best-3"], model_args, limit=3))
    items = [line for line in lines if line["type"] == "item"]
    assert [(line["kv"], line["key"]) for line in items] == [(kv, str(i)) for kv in ("f16", "best-3") for i in (1, 2, 3)]
    full, best = (line["metrics"] for line in lines if line["type"] == "result")
    assert "acc_change" not in full and best["answer_nll_change"]["n"] == 3 and best["bits_per_value"]["value"] > 0
    change = sum(b["answer_nll"] - a["answer_nll"] for a, b in zip(items[:3], items[3:])) / 3
    assert best["answer_nll_change"]["value"] == pytest.approx(change)
