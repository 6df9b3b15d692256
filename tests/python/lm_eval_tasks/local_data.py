"""Documents of these tasks, from files in $LOWKEY_DATA and $LOWKEY_CHUNKS."""
import json
import os

import datasets


def _read(variable, *parts):
    folder = os.environ.get(variable)
    if not folder:
        raise ValueError(f"set ${variable}")
    with open(os.path.join(folder, *parts), encoding="utf-8") as file:
        return datasets.Dataset.from_list([json.loads(line) for line in file])


def questions(name, **_):
    """multichoice/NAME.jsonl: {"q", "choices", "answer"}."""
    return {"test": _read("LOWKEY_DATA", "multichoice", name + ".jsonl")}


def problems(**_):
    """gsm8k/*.jsonl: {"question", "answer"}."""
    return {"test": _read("LOWKEY_DATA", "gsm8k", "test.jsonl"),
            "train": _read("LOWKEY_DATA", "gsm8k", "train-200.jsonl")}


def chunks(**_):
    """chunks.jsonl: {"context", "continuation"}, halves of chunks of a text; compare_lm_eval.py writes it."""
    return {"test": _read("LOWKEY_CHUNKS", "chunks.jsonl")}
