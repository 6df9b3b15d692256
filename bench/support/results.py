"""Tables of measurements: one CSV next to each page of results.

Columns: command,model,text,recipe,bits,metric,value,error,commit,cpu. A row is one number. `command` is what printed it,
without the recipe, and tells measurements apart: a table finds its rows by the name of the output in it ("-o NAME.jsonl",
"> NAME.json", "--save NAME"). Rows without a command are of the last one above, with its model, commit and cpu. `metric` is a
name and what else tells a row from others of the command:

    kl_mean[task=text]      decode_tps[depth=8192]      nll[task=gsm8k,key=line 508]      lost[layer=3,side=kpre]

In Python a measurement is a dict of the columns that are the same for all of its rows, and "records": dicts with "recipe",
"text" (or None), "at" (what is in the brackets) and "metrics": {name: value or (value, error)}.
"""
import csv
import os
import re
import subprocess

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COLUMNS = ("command", "model", "text", "recipe", "bits", "metric", "value", "error", "commit", "cpu")
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?|-?inf|nan")


def number(word):
    """The value that to_word() wrote: a number, a list, None or a word."""
    if word == "":
        return None
    if ";" in word:
        return [number(part) for part in word.split(";") if part]
    if not NUMBER.fullmatch(word):
        return {"true": True, "false": False}.get(word, word)
    return int(word) if re.fullmatch(r"-?\d+", word) else float(word)


def to_word(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "".join(to_word(v) + ";" for v in value)
    return repr(value) if isinstance(value, float) else str(value)


def to_at(at):
    return "[" + ",".join(f"{k}={to_word(v)}" for k, v in at.items()) + "]" if at else ""


def from_at(metric):
    """(name, {...}) of 'name[key=value,...]'. Only the last value may hold a comma."""
    name, _, rest = metric.partition("[")
    at = {}
    for word in re.split(r",(?=\w+=)", rest[:-1]) if rest else []:
        key, _, value = word.partition("=")
        at[key] = number(value)
    return name, at


def rows_of(measurement):
    """The rows; the first has what is the same for all."""
    command, model, commit_of, cpu = (measurement.get(name) or "" for name in ("command", "model", "commit", "cpu"))
    for record in measurement["records"]:
        bits = record["metrics"].get("bits_per_value")
        bits = bits[0] if isinstance(bits, tuple) else bits
        for name, value in record["metrics"].items():
            value, error = value if isinstance(value, tuple) else (value, None)
            yield (command, model, record.get("text") or measurement.get("text") or "", record.get("recipe") or "",
                   f"{bits:.6g}" if bits is not None else "", name + to_at(record.get("at") or {}), to_word(value), to_word(error), commit_of, cpu)
            command = model = commit_of = cpu = ""


def read(path):
    """The measurements of a table, in its order."""
    out, last, m = {}, None, None
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["command"]:
                m = out.setdefault(row["command"], {"command": row["command"], "model": row["model"], "text": row["text"], "commit": row["commit"],
                                                    "cpu": row["cpu"], "records": []})
            if m is None:
                raise ValueError(f"{path}: the first row has no command")
            name, at = from_at(row["metric"])
            key = (m["command"], row["text"], row["recipe"], at)
            if key != last:
                m["records"].append({"recipe": row["recipe"], "text": row["text"], "at": at, "metrics": {}})
                last = key
            value, error = number(row["value"]), number(row["error"])
            m["records"][-1]["metrics"][name] = value if error is None else (value, error)
    return list(out.values())


def write(path, measurements):
    with open(path + ".new", "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for m in measurements:
            table.writerows(rows_of(m))
    os.replace(path + ".new", path)


def save(path, measurement):
    """Put a measurement into a table; it replaces one of the same command."""
    old = read(path) if os.path.exists(path) else []
    at = next((i for i, m in enumerate(old) if m["command"] == measurement["command"]), len(old))
    old[at:at + 1] = [measurement]
    write(path, old)


def find(measurements, output):
    """The measurement whose command writes `output`, or None."""
    pattern = re.compile(r"(?:-o|>|--save)[ =]\S*?" + re.escape(output) + r"(?=\s|$)")
    return next((m for m in measurements if pattern.search(m["command"])), None)


def commit():
    done = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty", "--abbrev=12"], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip()


# ---- what the programs print ----


def without_recipes(command):
    """A command line without its --kv options: the recipe has a column of its own."""
    return re.sub(r" (--kv|-k)[ =]('[^']*'|\S+)", "", command)


def text_of(command):
    found = re.search(r" (?:--text|-f)[ =]('[^']*'|\S+)", command)
    return found.group(1).strip("'") if found else ""


def record(entry, ids=(), recipe="kv"):
    """A record of a flat dict: `ids` and the entries that are words or yes and no tell it from others."""
    rest = {k: v for k, v in entry.items() if k not in (recipe, "text")}
    at = {k: v for k, v in rest.items() if k in ids or isinstance(v, (str, bool))}
    return {"recipe": entry.get(recipe), "text": entry.get("text"), "at": at, "metrics": {k: v for k, v in rest.items() if k not in at}}


def head(answer, leave=()):
    """A record of the numbers and words of an answer that hold for all of its results."""
    plain = {k: v for k, v in answer.items() if k not in leave and not isinstance(v, (dict, list))}
    return {"recipe": None, "at": {}, "metrics": plain}


def of_eval(lines):
    """A measurement of the lines of `lowkey eval`."""
    out = {"records": []}
    for line in lines:
        if line["type"] == "run":
            command = re.sub(r" --data[ =]\S+", "", line["command"])
            command = without_recipes(command)
            if command not in out.get("command", ""): # a file of several runs
                command = out["command"] + "; " + command if "command" in out else command
            else:
                command = out["command"]
            out.update(command=command, model=line["model"], cpu=line.get("cpu"), text=text_of(line["command"]),
                       commit=line.get("commit"))
            out["records"].append({"recipe": None, "at": {}, "metrics": {"ctx": line["options"].get("--ctx")}})
        elif line["type"] == "result":
            metrics = {}
            for name, m in line["metrics"].items():
                metrics[name] = (m["value"], m["stderr"]) if m.get("stderr") is not None else m["value"]
                metrics[name + ".n"] = m.get("n")
            counts = [v for k, v in metrics.items() if k.endswith(".n")]
            common = max(counts, key=counts.count) # most have this one
            metrics = {k: v for k, v in metrics.items() if not k.endswith(".n") or v != common} | {"n": common}
            out["records"].append({"recipe": line["kv"], "at": {"task": line["task"]}, "metrics": metrics})
        elif line["type"] == "item":
            numbers = {k: v for k, v in line.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
            out["records"].append({"recipe": line["kv"], "at": {"task": line["task"], "key": line["key"]}, "metrics": numbers})
    return out


def to_metrics(metrics):
    """{name: {"value", "stderr", "n"}}, as `lowkey eval` prints them."""
    out = {}
    for name, value in metrics.items():
        if name != "n" and not name.endswith(".n"):
            value, error = value if isinstance(value, tuple) else (value, None)
            out[name] = {"value": value, "stderr": error, "n": metrics.get(name + ".n", metrics.get("n"))}
    return out


def of_perplexity(answer, command, cpu=None):
    """The same of `lowkey perplexity --json`."""
    out = {"command": without_recipes(command), "model": answer["model"], "cpu": cpu, "commit": answer.get("commit"), "text": text_of(command),
           "records": [{"recipe": None, "at": {}, "metrics": {"ctx": answer["n_ctx"]}}]}
    for r in answer["results"]:
        metrics = {k: r[k] for k in ("kl_median", "kl_p99", "kl_p999", "top1", "bits_per_value", "bytes_per_token", "tokens_per_second")}
        metrics |= {"kl_mean": (r["kl_mean"], r["kl_stderr"]), "ppl": (r["ppl"], r["ppl_stderr"]), "n": r["n_scored"]}
        if r.get("ppl_chunk_stderr"):
            metrics |= {"kl_by_chunk": (r["kl_mean"], r["kl_chunk_stderr"]), "ppl_by_chunk": (r["ppl"], r["ppl_chunk_stderr"])}
        out["records"].append({"recipe": r["kv"], "at": {"task": "text"}, "metrics": metrics})
    return out


def of_answer(answer, command, results, ids=(), cpu=None):
    """A measurement of JSON with a list of flat `results`, as of `lowkey bench` and `plan`."""
    return {"command": without_recipes(command), "model": answer.get("model"), "cpu": cpu or answer.get("cpu"), "commit": answer.get("commit"),
            "text": text_of(command), "records": [head(answer, ("model", "cpu", "commit", "command"))] + [record(r, ids) for r in answer[results]]}


def to_answer(measurement, results):
    """The JSON that of_answer() was given; what the columns do not hold is left out."""
    out = {"model": measurement["model"], "cpu": measurement["cpu"], "commit": measurement["commit"], "command": measurement["command"], results: []}
    for r in measurement["records"]:
        if not r["recipe"] and not r["at"]:
            out |= r["metrics"]
        else:
            out[results].append({"kv": r["recipe"], **r["at"], **r["metrics"]})
    return out


def save_bench(name, command, machine, answer, rows, ids, page="performance"):
    """Put the rows of a program of bench/ into docs/PAGE.csv, as NAME. `answer`: what holds for all of them."""
    command = command if re.search(r" --save[ =]" + re.escape(name) + r"(?= |$)", command) else f"{command} > {name}"
    save(os.path.join(TOP, "docs", page + ".csv"), of_answer({**machine, **answer, "results": rows}, command, "results", ids))


def of_compress(answer, command):
    """A measurement of `lowkey compress --json`."""
    out = {"command": command, "model": answer["model"], "text": text_of(command), "records": [head(answer, ("model", "output"))]}
    for i, layer in enumerate(answer["layers"]):
        out["records"] += [{"recipe": None, "at": {"layer": i, "side": side}, "metrics": {name: value for name, value in m.items() if name != "channels"}}
                           for side, m in layer.items()]
    return out


def to_compress(measurement):
    layers = []
    for r in measurement["records"]:
        if "layer" in r["at"]:
            if r["at"]["layer"] == len(layers):
                layers.append({})
            layers[-1][r["at"]["side"]] = r["metrics"]
    return {"model": measurement["model"], "layers": layers}


def of_columns(lines, command, names, model=None, split="\t", text=None, kv=None):
    """A measurement of a table of plain text. `names` of its columns: 'recipe', 'text', words, numbers."""
    out = {"command": command, "model": model, "text": text, "records": []}
    for i, line in enumerate(lines):
        entry = dict(zip(names, (number(word.strip()) if name not in ("recipe", "text") else word.strip()
                                 for name, word in zip(names, line.rstrip("\n").split(split)))))
        out["records"].append({**record(entry, recipe="recipe"), **({"recipe": kv} if kv else {})})
        out["records"][-1]["at"]["row"] = i
    return out
