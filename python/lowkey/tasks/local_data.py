"""Documents of the local tasks, from JSON lines in $LOWKEY_DATA, and how answers become figures.

lm-eval calls these functions with the model's arguments as keywords (`metadata`). Those that count tokens open the
vocabulary of `model`, a GGUF file. Programs that use another model class give it as --metadata '{"model": FILE}'.

Two fields of a document are for lowkey's model class: `prompt_ends_before` (see LowkeyLM), and `key`, the item's name.
"""

from __future__ import annotations

import functools
import glob
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import datasets

import lowkey

Document = dict[str, Any]
Splits = dict[str, datasets.Dataset]
MASK = 2**64 - 1


def _path(*parts: str) -> str:
    folder = os.environ.get("LOWKEY_DATA")
    if not folder:
        raise ValueError("set $LOWKEY_DATA to the folder of data sets")
    return os.path.join(folder, *parts)


def _read(*parts: str) -> list[Document]:
    with open(_path(*parts), encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


@functools.lru_cache(maxsize=1)
def _vocabulary(path: str) -> lowkey.Model:
    return lowkey.Model(path, threads=1)


def _splits(**lists: list[Document]) -> Splits:
    return {name: datasets.Dataset.from_list(rows) for name, rows in lists.items()}


# ---- random orders ----


class Random:
    """splitmix64, seeded by a number and a name, so that a seed chooses the same items everywhere."""

    def __init__(self, seed: int, name: str) -> None:
        self.state = seed
        for byte in name.encode():
            self.state = self.next() ^ byte
        self.state = self.next()
        self.state = self.next()

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    def permutation(self, n: int) -> list[int]:
        order = list(range(n))
        for i in range(n):
            j = (self.next() >> 32) * (i + 1) >> 32
            order[i] = order[j]
            order[j] = i
        return order


def _shuffled(rows: list[Document], name: str, seed: int) -> list[Document]:
    return [rows[i] for i in Random(seed, name).permutation(len(rows))]


# ---- multiple choice ----

# How a question and its choices become texts. Scored are the tokens after the prefix that all texts share; with a
# gap, the tokens of the suffix that all texts share.
LAYOUTS: dict[str, Callable[[str, str], str]] = {
    "question": lambda q, choice: f"Question: {q}\nAnswer: {choice}",
    "sentence": lambda q, choice: f"{q} {choice}",
    "ending": lambda q, choice: f"{q} {choice}",
    "gap": lambda q, choice: q.replace("_", choice, 1),
}


def _hellaswag() -> Iterator[Document]:
    """Six lines a question: context, index of the right ending, four endings."""
    files = sorted(glob.glob(_path("hellaswag", "hellaswag*.txt")))
    if not files:
        raise FileNotFoundError(_path("hellaswag", "hellaswag*.txt"))
    with open(files[0], encoding="utf-8") as file:
        lines = [line.rstrip("\r\n") for line in file]
    for i in range(0, len(lines) - 5, 6):
        yield {"q": lines[i], "choices": lines[i + 2 : i + 6], "answer": int(lines[i + 1])}


def _common(lists: list[list[int]]) -> int:
    """Number of first elements that all lists share, fewer than the shortest has."""
    shortest = min(map(len, lists))
    n = 0
    while n < shortest and all(tokens[n] == lists[0][n] for tokens in lists):
        n += 1
    return min(n, shortest - 1)


def _split_choices(vocabulary: lowkey.Model, layout: str, row: Document) -> Document:
    """What is given and what is scored of each choice, as texts; and the numbers of scored tokens."""
    texts = [LAYOUTS[layout](row["q"], choice) for choice in row["choices"]]
    tokens = [vocabulary.tokenize(text) for text in texts]
    begin, gap = len(vocabulary.tokenize("")), layout == "gap"
    # The longest part whose texts can be joined again: a token may end within a character.
    for n in range(_common([each[::-1] for each in tokens] if gap else tokens), 0, -1):
        cuts = [len(each) - n if gap else n for each in tokens]
        scored = [vocabulary.detokenize(each[cut:]) for each, cut in zip(tokens, cuts)]
        given = [vocabulary.detokenize(each[begin:cut]) for each, cut in zip(tokens, cuts)]
        if all(a + b == text for a, b, text in zip(given, scored, texts)):
            n_scored = [len(each) - cut for each, cut in zip(tokens, cuts)]
            return {"given": given, "scored": scored, "answer": row["answer"], "n_scored": n_scored}
    raise ValueError(f"the choices of a question share no text: {texts[0]!r}")


def given(doc: Document) -> str:
    return str(doc["given"][0])


def answer(doc: Document) -> int:
    """lm-eval's form of a task whose choices are in the contexts: the text is the index of the right one."""
    return int(doc["answer"])


def scored(doc: Document) -> str:
    return str(doc["scored"][0])


def questions(name: str, layout: str, model: str, **_: Any) -> Splits:
    """multichoice/NAME.jsonl, {"q", "choices", "answer"}, or hellaswag/hellaswag*.txt."""
    rows = list(_hellaswag()) if name == "hellaswag" else _read("multichoice", name + ".jsonl")
    vocabulary = _vocabulary(model)
    return _splits(test=[_split_choices(vocabulary, layout, row) for row in rows])


def score_choices(doc: Document, results: list[Any]) -> dict[str, float]:
    """acc by log-likelihood; acc_norm by log-likelihood per token, as llama-perplexity --hellaswag."""
    likelihood = [float(result[0]) for result in results]
    per_token = [value / n for value, n in zip(likelihood, doc["n_scored"])]
    best = max(range(len(likelihood)), key=likelihood.__getitem__)
    best_norm = max(range(len(per_token)), key=per_token.__getitem__)
    return {
        "acc": float(best == doc["answer"]),
        "acc_norm": float(best_norm == doc["answer"]),
        "answer_nll": -per_token[doc["answer"]],
    }


# ---- word problems ----

NUMBER = re.compile(r"-?[0-9](?:[0-9]|,(?=[0-9]))*(?:\.[0-9]+)?")


def answer_number(text: str) -> float | None:
    """The number after "####", or the last one of the text."""
    _, mark, after = text.partition("####")
    found = NUMBER.findall(after if mark else text)
    return float(found[0 if mark else -1].replace(",", "")) if found else None


def _problem(row: Document, line: int) -> Document:
    number = row.get("answer_number")
    answer = row.get("answer")
    solution = answer if isinstance(answer, str) and "####" in answer else None
    if not isinstance(number, (int, float)):
        number = answer_number(answer) if isinstance(answer, str) else answer
    if number is None:
        raise ValueError(f'line {line}: "answer" has no number; it must end with "#### NUMBER"')
    return {
        "key": f"line {line}",
        "text": f"Question: {row['question']}",
        "prompt_ends_before": f"Question: {row['question']}",
        # without the calculator's annotations, such as <<48/2=24>>
        "solution": re.sub(r"<<.*?>>", "", solution, flags=re.S) if solution else "",
        "number": float(number),
        "lang": row.get("lang") or "",
    }


def problems(name: str, model: str, seed: int = 1, **_: Any) -> Splits:
    """NAME/test.jsonl and NAME/train-200.jsonl or train.jsonl: {"question", "answer"}, as GSM8K and MGSM."""
    train = "train-200.jsonl" if os.path.exists(_path(name, "train-200.jsonl")) else "train.jsonl"
    test, examples = (
        [_problem(row, i) for i, row in enumerate(_read(name, file), 1)]
        for file in ("test.jsonl", train)
    )
    shots = [row for row in _shuffled(examples, "shots", seed) if row["solution"]]
    vocabulary = _vocabulary(model)
    for row in test:
        row["right"] = " " + row["solution"]
        row["n_right"] = len(vocabulary.tokenize(row["right"], begin=False))
    return _splits(test=_shuffled(test, name, seed), train=shots)


def score_problem(doc: Document, results: list[str]) -> dict[str, float]:
    given, right = answer_number(results[0].split("\nQuestion:")[0]), doc["number"]
    return {"exact_match": float(given is not None and abs(given - right) <= 1e-9 * abs(right))}


def score_reference(doc: Document, results: list[Any]) -> dict[str, float]:
    """Nats per token of the right answer. It tells caches apart even if every answer is wrong."""
    likelihood, _ = results if isinstance(results, tuple) else results[0]
    return {"nll": -float(likelihood) / doc["n_right"]}


# ---- summaries ----

SUMMARY_TOKENS = 160


def _requests() -> Iterator[Document]:
    if os.path.exists(_path("summary", "test.jsonl")):
        for line, row in enumerate(_read("summary", "test.jsonl"), 1):
            yield {**row, "key": f"line {line}/0"}
        return
    for line, row in enumerate(_read("qmsum", "test.jsonl"), 1):
        turns = row["meeting_transcripts"]
        document = "\n".join(f"{turn['speaker']}: {turn['content']}" for turn in turns)
        queries = row["general_query_list"] + row["specific_query_list"]
        for i, query in enumerate(queries):
            yield {
                "document": document,
                "query": query["query"],
                "reference": query["answer"],
                "key": f"line {line}/{i}",
            }


class _Fit:
    """Shortens a document in the middle, as LongBench, until prompt and answer fit."""

    def __init__(self, model: str, n_ctx: int, plain: bool = False) -> None:
        self.vocabulary, self.n_ctx = _vocabulary(model), n_ctx
        self.chat = self.vocabulary.chat_template is not None and not plain

    def context(self, words: list[str], n: int) -> str:
        head, tail = "".join(words[: n - n // 2]), "".join(words[len(words) - n // 2 :])
        gap = "\n[...]\n" if n < len(words) else ""
        return f"Read this document; a question about it follows.\n\n{head}{gap}{tail}"

    def length(self, context: str, question: str, room: int) -> int:
        """Tokens of the prompt and `room` for the answer."""
        text = f"{context}\n\n{question}"
        if self.chat:
            prompt = self.vocabulary.chat_format([{"role": "user", "content": text}]) + "Answer:"
        else:
            prompt = text + "\nAnswer:"
        return len(self.vocabulary.tokenize(prompt, control=True)) + room

    def fit(self, document: str, question: str, room: int = SUMMARY_TOKENS) -> str:
        words = re.findall(r"[ \t-\r]*[^ \t-\r]+|[ \t-\r]+$", document)
        low, high = min(16, len(words)), len(words) + 1  # low fits, high does not
        low_tokens = self.length(self.context(words, low), question, room)
        if low_tokens > self.n_ctx:
            raise ValueError(f"{self.n_ctx} tokens are too few for a question; give a larger n_ctx")
        per_word = 0.0
        while high - low > 1 and (per_word == 0 or self.n_ctx - low_tokens >= per_word):
            step = int((self.n_ctx - low_tokens) / per_word) if per_word > 0 else 16
            n = low + step if step < high - low else high - 1
            tokens = self.length(self.context(words, n), question, room)
            per_word = (tokens - low_tokens) / (n - low) if tokens > low_tokens else 1.0
            if tokens <= self.n_ctx:
                low, low_tokens = n, tokens
            else:
                high = n
        return self.context(words, low)


def summaries(
    model: str, n_ctx: int | None = None, seed: int = 1, limit: int | None = None, shots: int | None = None, **_: Any
) -> Splits:
    """summary/test.jsonl, {"document", "query", "reference"}, or QMSum's qmsum/test.jsonl.

    With shots, a document is a plain text, as for a base model: as many answered questions about other documents, each of an
    equal share of n_ctx, come first.
    """
    fit, documents = _Fit(model, int(n_ctx or 4096) // ((shots or 0) + 1), bool(shots)), []
    rows = _shuffled(list(_requests()), "summary", seed)
    for row in rows[:limit]:
        others = [other for other in reversed(rows) if other["document"] != row["document"]][: shots or 0]
        if len(others) < (shots or 0):
            raise ValueError(f"the data have no {shots} questions about other documents")
        texts = []
        for other in others:
            question = _question(other)
            room = len(fit.vocabulary.tokenize(f" {other['reference']}\n\n", begin=False))
            texts.append(f"{fit.fit(other['document'], question, room)}\n\n{question}\nAnswer: {other['reference']}")
        question = _question(row)
        texts.append(f"{fit.fit(row['document'], question)}\n\n{question}")
        documents.append(
            {
                "key": row["key"],
                "text": "\n\n".join(texts),
                "prompt_ends_before": question,
                "reference": row["reference"],
                "right": " " + row["reference"],
                "n_right": len(fit.vocabulary.tokenize(" " + row["reference"], begin=False)),
            }
        )
    return _splits(test=documents)


def _question(row: Document) -> str:
    return f"Answer in one paragraph, from the document: {row['query']}"


def score_summary(doc: Document, results: list[str]) -> dict[str, float]:
    """ROUGE (F) against the reference, by the package rouge-score without its stemmer."""
    from rouge_score import rouge_scorer

    kinds = ["rouge1", "rouge2", "rougeL"]
    answer = results[0].split("\n\n")[0]
    scores = rouge_scorer.RougeScorer(kinds).score(doc["reference"], answer)
    return {kind: scores[kind].fmeasure for kind in kinds}


# ---- texts ----


def chunks(**_: Any) -> Splits:
    """$LOWKEY_CHUNKS: JSON lines {"context", "continuation"}, halves of chunks of a text."""
    path = os.environ.get("LOWKEY_CHUNKS")
    if not path:
        raise ValueError("set $LOWKEY_CHUNKS to a file of chunks")
    with open(path, encoding="utf-8") as file:
        return _splits(test=[json.loads(line) for line in file])


def mean(values: list[float]) -> float:
    values = [value for value in values if not math.isnan(value)]
    return sum(values) / len(values) if values else math.nan
