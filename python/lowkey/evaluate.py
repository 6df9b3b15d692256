"""Measure local tasks with several recipes by lm-eval, and write results as `lowkey eval` does.

    python -m lowkey.evaluate -m model.gguf --tasks arc_easy,summary --kv best-3 --kv best-2 -o results.jsonl

The full cache (f16) is measured first; each recipe's items are then compared with its items one by one. docs/python.md describes the tasks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import lm_eval
import lm_eval.tasks

import lowkey
import lowkey.lm_eval

TASKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tasks")
# Questions in the chat template, with the likelihood of the right answer; all other tasks are plain texts.
QUESTIONS = ("gsm8k", "mgsm", "summary")

Item = dict[str, float]


def _metric(values: list[float]) -> dict[str, Any]:
    """Mean and standard error, as a metric of a results file."""
    n = len(values)
    mean = sum(values) / n
    square = sum((value - mean) ** 2 for value in values)
    return {"value": mean, "stderr": math.sqrt(square / (n - 1) / n) if n > 1 else None, "n": n}


def items(
    task: str,
    model_args: dict[str, Any],
    *,
    limit: int | None = None,
    seed: int = 1,
    shots: int | None = None,
    min_answer: int = 0,
) -> tuple[dict[str, Item], float]:
    """{key of the item: figures} of one task and recipe, and the mean of the cache's bits per value."""
    metadata = {**model_args, "seed": seed, "limit": limit, "shots": shots}
    manager = lm_eval.tasks.TaskManager(include_path=TASKS, metadata=metadata)
    # the contexts of winogrande's choices share the text before the gap
    lm = lowkey.lm_eval.LowkeyLM(**model_args, keep_spaces=True, reuse_prefix=task == "winogrande")
    shots_in_text = task == "summary" and shots is not None # its documents hold them
    chat = task in QUESTIONS and lm.model.chat_template is not None and not (shots_in_text and shots)
    found: dict[str, Item] = {}
    for part in [f"local_{task}", f"local_{task}_nll"] if task in QUESTIONS else [f"local_{task}"]:
        generates = task in QUESTIONS and not part.endswith("_nll")
        out = lm_eval.simple_evaluate(
            model=lm,
            tasks=[part],
            task_manager=manager,
            limit=limit,
            num_fewshot=None if shots_in_text else shots,
            apply_chat_template=chat,
            fewshot_as_multiturn=chat,
            gen_kwargs={"min_gen_toks": min_answer} if generates and min_answer else None,
            bootstrap_iters=0,
            log_samples=True,
            verbosity="ERROR",
        )
        for sample in out["samples"][part]:
            key = sample["doc"].get("key", str(sample["doc_id"] + 1))
            found.setdefault(key, {}).update({name: sample[name] for name in sample["metrics"]})
    return found, sum(lm.bits_per_value) / len(lm.bits_per_value)


def compare(task: str, kv: list[str], model_args: dict[str, Any], **options: Any) -> Iterator[dict[str, Any]]:
    """Lines of a results file: the items and the result of f16 and of each recipe. options as for `items`."""
    full: dict[str, Item] = {}
    for recipe in ["f16"] + [each for each in kv if each != "f16"]:
        found, bits = items(task, {**model_args, "kv": recipe}, **options)
        metrics = {"bits_per_value": {"value": bits, "stderr": None, "n": len(found)}}
        for name in next(iter(found.values())):
            metrics[name] = _metric([item[name] for item in found.values()])
            if full:
                metrics[f"{name}_change"] = _metric([item[name] - full[key][name] for key, item in found.items()])
        full = full or found
        for key, item in found.items():
            yield {"type": "item", "task": task, "kv": recipe, "key": key, **item}
        yield {"type": "result", "task": task, "kv": recipe, "metrics": metrics, "series": {}, "heat": {}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lowkey.evaluate", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--tasks", required=True, help="names separated by commas, such as arc_easy,gsm8k,summary")
    parser.add_argument("-k", "--kv", action="append", default=[], help="recipe; may be repeated")
    parser.add_argument("--data", help="folder of data sets (default: $LOWKEY_DATA)")
    parser.add_argument("-o", "--output", help="append JSON lines to this file")
    parser.add_argument("-c", "--ctx", type=int, help="context length in tokens")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--limit", type=int, help="maximum number of items per task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shots", type=int, help="examples before each question (default: the task's own); summary then has no chat template")
    parser.add_argument("--min-answer", type=int, default=0, help="tokens that an answer has at least")
    parser.add_argument("--sidecar")
    parser.add_argument("--weights", default="shipped", choices=["shipped", "f32"])
    parser.add_argument("--context", default="prompt", choices=["prompt", "steps"])
    a = parser.parse_args()
    if a.shots is not None and a.shots < 0:
        parser.error("--shots: at least 0")
    if a.data:
        os.environ["LOWKEY_DATA"] = a.data
    model_args = {"model": a.model, "n_ctx": a.ctx, "threads": a.threads, "sidecar": a.sidecar}
    model_args |= {"weights": a.weights, "context": a.context}
    options = {"limit": a.limit, "seed": a.seed, "shots": a.shots, "min_answer": a.min_answer}
    with open(a.output or os.devnull, "a", encoding="utf-8") as file:
        if file.tell() == 0:
            header = {"type": "run", "version": lowkey.version(), "model": os.path.basename(a.model)}
            header |= {"weights": a.weights, "command": f"{parser.prog} {shlex.join(sys.argv[1:])}", "options": options}
            file.write(json.dumps(header) + "\n")
        for task in a.tasks.split(","):
            for line in compare(task, a.kv, model_args, **options):
                file.write(json.dumps(line) + "\n")
                file.flush()
                if line["type"] == "result":
                    figures = (f"{name} {m['value']:.4f}" + (f" +-{m['stderr']:.4f}" if m["stderr"] else "")
                               for name, m in line["metrics"].items())
                    print(f"{task}  {line['kv']}  " + "  ".join(figures), flush=True)


if __name__ == "__main__":
    main()
