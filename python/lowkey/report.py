"""Plots and tables of results as one HTML page, or as a picture.

    python -m lowkey.report results.jsonl bench.json tune.json inspect.json -o report.html
    python -m lowkey.report results.jsonl -o picture.svg

The files are those of `lowkey eval -o` and lowkey.evaluate, and the output of `lowkey bench`, `perplexity`, `tune` and
`inspect` with --json. Their content says what they are. The page needs no network, and follows the reader's light or
dark colors. The file needs matplotlib alone: it also runs as a script, without the package being built.
"""

from __future__ import annotations

import argparse
import html
import io
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

Row = dict[str, Any]

# Colors of the plots, and what they are in a light and a dark page. Plots are drawn with the first; the page replaces
# them by variables.
ROLES = {
    "ink": ("#1b1f24", "#e8eaed"),
    "soft": ("#59626d", "#a3abb5"),
    "grid": ("#e3e6ea", "#31363d"),
    "page": ("#fefefe", "#16181c"),
}
SERIES = [("#2463c9", "#6ea3f5"), ("#c2482a", "#f0825f"), ("#23884e", "#54c084"), ("#8a55b5", "#bd8ee6"),
          ("#a87708", "#dcae3f"), ("#0e8a98", "#4cc2cf"), ("#bb3a74", "#ee7fae"), ("#66707c", "#a3abb5")]
LABELS = {
    "ppl": "perplexity", "kl_mean": "KL", "kl_median": "KL median", "kl_p99": "KL p99", "kl_p999": "KL p99.9",
    "top1": "same top token", "acc": "accuracy", "acc_norm": "accuracy (normalized)", "bits_per_value": "bits/value",
    "bits_with_sidecar": "bits/value with sidecar", "bytes_per_token": "bytes/token", "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "kl_by_depth": "KL by depth in the context",
    "hellinger_by_layer": "distance of attention (Hellinger) by layer",
}  # fmt: skip
COSTS = ("bits_per_value", "bytes_per_token", "bits_with_sidecar", "seconds", "tokens_per_second")
FIGURES = itertools.count()

plt.rcParams.update({
    "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.edgecolor": ROLES["soft"][0], "axes.labelcolor": ROLES["soft"][0], "axes.grid": True,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "grid.color": ROLES["grid"][0], "grid.linewidth": 0.8,
    "xtick.color": ROLES["soft"][0], "ytick.color": ROLES["soft"][0], "text.color": ROLES["ink"][0], "figure.facecolor": ROLES["page"][0],
    "axes.facecolor": ROLES["page"][0], "lines.linewidth": 1.6, "lines.markersize": 4, "legend.frameon": False, "legend.fontsize": 8,
    "xtick.minor.size": 0, "ytick.minor.size": 0,
})  # fmt: skip


class Bad(Exception):
    """A file that cannot be shown; its text is one line."""


def is_reference(kv: str) -> bool:
    return kv == "f16" or kv.startswith("llama.cpp:")


def short(kv: str, n: int = 24) -> str:
    kv = "noise floor" if kv == "llama.cpp:plain" else kv.removeprefix("llama.cpp:")
    return kv if len(kv) <= n else kv[: n - 1] + "…"


def label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


# ---- reading ----


class Results:
    """Results of one model with one kind of weights: runs, and {task: {recipe: result}}."""

    def __init__(self, run: Row) -> None:
        self.runs, self.tasks, self.source = [run], {}, {}
        self.names: dict[str, int] = {}  # of recipes, with the number of the color; references have -1

    runs: list[Row]
    tasks: dict[str, dict[str, Row]]
    source: dict[tuple[str, str], str]

    @property
    def title(self) -> str:
        weights = {"f32": "in f32", "shipped": "as shipped"}.get(self.runs[0].get("weights", ""), "")
        return str(self.runs[0].get("model", "")) + (f", weights {weights}" if weights else "")

    def add(self, path: str, line: Row) -> None:
        task, kv = line.get("task"), line.get("kv")
        if not task or not kv:
            raise Bad('a result without "task" or "kv"')
        check_result(line)
        other = self.source.setdefault((task, kv), path)
        if other != path:
            raise Bad(f"{other} has results of {task} with {kv} too; give one of them")
        self.tasks.setdefault(task, {})[kv] = line
        n = sum(number >= 0 for number in self.names.values())
        self.names.setdefault(kv, -1 if is_reference(kv) else n)


def is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def check_result(line: Row) -> None:
    metrics = line.get("metrics")
    if not isinstance(metrics, dict) or not all(
        isinstance(m, dict) and is_number(m.get("value")) and is_number(m.get("stderr")) for m in metrics.values()
    ):
        raise Bad('a metric is not {"value", "stderr", "n"} with numbers')
    for s in line.get("series", {}).values():
        x, y = s.get("x"), s.get("y")
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y) or not all(map(is_number, x + y)):
            raise Bad('a series is not {"x", "y"} with equally many numbers')
    for h in line.get("heat", {}).values():
        if len(h["z"]) != len(h["y"]) or any(len(row) != len(h["x"]) or not all(map(is_number, row)) for row in h["z"]):
            raise Bad("a heat map does not have a number for each column in every row")


class Report:
    """All that a page shows."""

    def __init__(self) -> None:
        self.results: list[Results] = []
        self.bench: list[Row] = []
        self.tune: list[Row] = []
        self.inspect: list[Row] = []

    def read(self, path: str) -> None:
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise Bad(f"cannot open {path}: {error.strerror}") from None
        try:
            whole = json.loads(text)
        except ValueError:
            self.read_lines(path, text)
            return
        if isinstance(whole, dict) and whole.get("type") == "run":
            raise Bad(f"{path} has no results yet")
        kind = self.kind(whole)
        if kind is None:
            raise Bad(f"{path}: not results of lowkey eval, perplexity, bench, tune or inspect")
        whole["path"] = path
        kind(whole)

    def kind(self, whole: Any) -> Callable[[Row], None] | None:
        if not isinstance(whole, dict):
            return None
        rows = whole.get("results")
        if "sensitivity" in whole:
            return self.tune.append
        if "layers" in whole and "levels" in whole:
            return self.inspect.append
        if not isinstance(rows, list) or not rows:
            return None
        if all("kl_mean" in row for row in rows):
            return self.add_perplexity
        speeds = ("depth", "decode_tps", "prefill_tps", "cache_bytes", "bits_per_value")
        if all(row.get("kv") and "depth" in row and all(is_number(row.get(name)) for name in speeds) for row in rows):
            return self.bench.append
        return None

    def add_perplexity(self, answer: Row) -> None:
        """The same as of `lowkey eval text`."""
        results = Results({"model": answer["model"], "command": answer.get("command", ""), "options": {"--ctx": answer["n_ctx"]}})
        for r in answer["results"]:
            names = ("kl_median", "kl_p99", "kl_p999", "top1", "bits_per_value", "bytes_per_token")
            metrics = {name: {"value": r[name], "stderr": None, "n": r["n_scored"]} for name in names if name in r}
            for name, error in (("kl_mean", "kl_stderr"), ("ppl", "ppl_stderr")):
                metrics[name] = {"value": r[name], "stderr": r[error], "n": r["n_scored"]}
            results.add(answer["path"], {"task": "text", "kv": r["kv"], "metrics": metrics})
        self.results.append(results)

    def read_lines(self, path: str, text: str) -> None:
        results, n = None, 0
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                if number == len(lines) and results:
                    break  # cut off, as after a kill
                raise Bad(f"{path}, line {number}: not JSON") from None
            kind = row.get("type") if isinstance(row, dict) else None
            if kind == "run":
                results = self.group(row)
            elif results is None:
                raise Bad(f"{path}, line {number}: not results: expected a line of type \"run\"")
            elif kind == "result":
                try:
                    results.add(path, row)
                except Bad as error:
                    raise Bad(f"{path}, line {number}: {error}") from None
                n += 1
            elif kind != "item":
                raise Bad(f"{path}, line {number}: a line of type \"{kind}\"; expected run, item or result")
        if n == 0:
            raise Bad(f"{path} has no results yet")

    def group(self, run: Row) -> Results:
        for results in self.results:
            if all(results.runs[0].get(key) == run.get(key) for key in ("model", "model_fingerprint", "weights")):
                results.runs.append(run)
                return results
        self.results.append(Results(run))
        return self.results[-1]


# ---- plots ----


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")
    return figure, list(axes.flat)


def color(number: int) -> str:
    return SERIES[number % (len(SERIES) - 1)][0] if number >= 0 else SERIES[-1][0]


def to_svg(figure: Figure, themed: bool) -> str:
    """The picture; `themed`: with colors that follow the page's."""
    name = f"f{next(FIGURES)}"
    out = io.StringIO()
    if not themed and figure.get_label():
        figure.axes[0].set_title(str(figure.get_label()))
    with plt.rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = out.getvalue().replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'")
    if not themed:
        return "\n".join(line.rstrip() for line in text.split("\n"))
    for role, (light, _) in ROLES.items():
        text = text.replace(light, f"var(--{role})")
    for i, (light, _) in enumerate(SERIES):
        text = text.replace(light, f"var(--c{i})")
    text = re.sub(r' id="(?!m|p)[^"]*"', "", text)  # of groups, which would repeat
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    return text[text.index("<svg") :].replace("<svg ", '<svg role="img" ', 1)


def place_names(axes: Axes, points: list[tuple[float, float, str, str]], right: bool = False) -> None:
    """Name points; of the places next to a point the first that is free is taken, or no name is drawn. right: names are
    on the right only, as at the ends of lines."""
    axes.figure.draw_without_rendering()  # type: ignore[union-attr,unused-ignore]
    scale, bounds = axes.figure.dpi / 72, axes.get_window_extent()
    at = [axes.transData.transform((x, y)) for x, y, _, _ in points]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in at]
    for (x, y), (_, _, name, ink) in zip(at, points):
        width, height = 5.0 * len(name) * scale, 10 * scale
        left, middle = -7 - width / scale, -width / scale / 2
        places = [(7, -3), (left, -3), (middle, 8), (middle, -15), (7, 9), (7, -15), (left, 9), (left, -15)]
        for dx, dy in [(7, -3), (7, 4), (7, -10), (7, 10), (7, -16)] if right else places:
            box = (x + dx * scale, y + dy * scale, x + dx * scale + width, y + dy * scale + height)
            inside = bounds.x0 <= box[0] and box[2] <= bounds.x1 + 4 and bounds.y0 <= box[1] and box[3] <= bounds.y1 + 8
            if inside and not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
                taken.append(box)
                axes.annotate(name, (x, y), (dx, dy), xycoords="figure pixels", textcoords="offset points", fontsize=8, color=ink)
                break


def frontier_points(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other point beats in both size and loss."""
    kept: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not kept or y < kept[-1][1]:
            kept.append((x, y))
    return kept


def axis_ticks(axes: Axes, which: str, ticks: list[float]) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    shown = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(shown, labels=[f"{tick:g}" for tick in shown])
    axis.set_ticks([], minor=True)


def plot_against_memory(results: Results, task: str, metric: str, size: tuple[float, float] = (4.0, 3.3)) -> Figure | None:
    """A point for each recipe; with KL also the line of lowkey's best recipes."""
    log, points = metric.startswith("kl"), []
    for kv, result in results.tasks[task].items():
        m, bits = result["metrics"].get(metric, {}), result["metrics"].get("bits_per_value", {}).get("value")
        if m.get("value") is not None and bits and (m["value"] > 0 or not log):
            points.append((bits, m["value"], 1.96 * (m.get("stderr") or 0), kv))
    if not points:
        return None
    figure, (axes,) = new_figure(*size)
    axes.set_xscale("log")
    axes.set_yscale("log" if log else "linear")
    if log:
        best = frontier_points((x, y) for x, y, _, kv in points if results.names[kv] >= 0)
        axes.plot([x for x, _ in best], [y for _, y in best], "--", color=ROLES["soft"][0], linewidth=1, zorder=1)
    for x, y, error, kv in points:
        reference, ink = results.names[kv] < 0, color(results.names[kv])
        low = min(error, 0.9 * y) if log else error
        axes.errorbar(x, y, [[low], [error]], color=ink, fmt="s" if reference else "o", markersize=5, elinewidth=0.9,
                      markerfacecolor=ROLES["page"][0] if reference else ink)  # fmt: skip
    axes.margins(x=0.12, y=0.12)
    axis_ticks(axes, "x", [1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32])
    axes.set_xlabel("bits per value, everything counted")
    figure.set_label(f"{task}: {label(metric)} against memory" + (" (nats)" if log else ""))
    place_names(axes, [(x, y, short(kv, 18), color(results.names[kv])) for x, y, _, kv in points])
    return figure


def plot_series(results: Results, task: str, name: str) -> Figure | None:
    figure, (axes,) = new_figure(4.0, 3.3)
    ends: list[tuple[float, float, str, str]] = []
    smallest = []
    for kv, result in results.tasks[task].items():
        s = result.get("series", {}).get(name)
        if not s or not any(y for y in s["y"]):
            continue
        y = [math.nan if value is None else value for value in s["y"]]
        ink, reference = color(results.names[kv]), results.names[kv] < 0
        axes.plot(s["x"], y, ":" if reference else "-", color=ink, linewidth=1.1 if reference else 1.6)
        axes.set_xlabel(s.get("x_label", ""))
        axes.set_ylabel(s.get("y_label", ""))
        ends.append((s["x"][-1], y[-1], short(kv, 14), ink))
        smallest.append(min(y))
    if not ends:
        plt.close(figure)
        return None
    if min(smallest) > 0:
        axes.set_yscale("log")
    axes.margins(x=0.03)
    axes.set_xlim(right=axes.get_xlim()[1] + 0.3 * (axes.get_xlim()[1] - axes.get_xlim()[0]))
    figure.set_label(f"{task}: {label(name)}")
    place_names(axes, sorted(ends, key=lambda end: end[3] == color(-1)), right=True)
    return figure


def draw_heat(axes: Axes, x: list[Any], y: list[Any], z: list[list[float]], limits: tuple[float, float], numbers: bool, log: bool = False) -> Any:
    norm = matplotlib.colors.LogNorm(*limits) if log else matplotlib.colors.Normalize(*limits)
    mesh = axes.pcolormesh(z, cmap="viridis", norm=norm, edgecolors=ROLES["page"][0], linewidth=0.8)
    axes.grid(False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks([i + 0.5 for i in range(len(x))], labels=[str(name) for name in x])
    step = -(-len(y) // 16)
    axes.set_yticks([i + 0.5 for i in range(0, len(y), step)], labels=[str(y[i]) for i in range(0, len(y), step)])
    axes.invert_yaxis()
    for i, row in enumerate(z) if numbers else ():
        for j, value in enumerate(row):
            if not math.isnan(value):
                axes.text(j + 0.5, i + 0.5, f"{value:.2g}", ha="center", va="center", fontsize=7.5,
                          color="#141414" if norm(value) > 0.5 else "#f4f4f4")  # fmt: skip
    return mesh


def plot_heat(results: Results, task: str, name: str) -> Figure | None:
    """A map for each recipe."""
    maps = [(kv, r["heat"][name]) for kv, r in results.tasks[task].items() if name in r.get("heat", {})]
    values = [v for _, h in maps for row in h["z"] for v in row if v is not None]
    if not values:
        return None
    low, high = (0.0, 1.0) if min(values) >= 0 and max(values) <= 1 else (min(values), max(values))
    columns = 4
    rows = -(-len(maps) // columns)
    figure, axes = new_figure(12.4, 0.9 + 1.75 * rows, rows, columns)
    for (kv, h), each in zip(maps, axes):
        z = [[math.nan if v is None else v for v in row] for row in h["z"]]
        mesh = draw_heat(each, h["x"], h["y"], z, (low, high), True)
        each.set_title(kv if len(kv) < 34 else short(kv, 34), color=color(results.names[kv]))
        each.set_xlabel(h.get("x_label", ""))
        each.set_ylabel(h.get("y_label", ""))
    for each in axes[len(maps) :]:
        each.set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, location="right", shrink=min(1.0, 1.4 / rows), aspect=18)
    bar.outline.set_visible(False)
    return figure


def plot_depth(rows: list[Row], field: str, title: str, milliseconds: bool = False, size: tuple[float, float] = (4.0, 3.3)) -> Figure | None:
    """Speed over depth, a line for each recipe. Depth 0 is drawn at the left edge of the logarithmic axis."""
    found = [row for row in rows if row.get(field)]
    if not found:
        return None
    figure, (axes,) = new_figure(*size)
    depths = sorted({row["depth"] for row in found})
    left = 2.0 ** (math.ceil(math.log2(min((d for d in depths if d), default=2048))) - 1)
    ends = []
    for i, kv in enumerate(dict.fromkeys(row["kv"] for row in found)):
        points = [(row["depth"] or left, 1000 / row[field] if milliseconds else row[field]) for row in found if row["kv"] == kv]
        ink = SERIES[-1][0] if kv == "f16" else color(i - 1 if "f16" in {row["kv"] for row in found} else i)
        axes.plot([x for x, _ in points], [y for _, y in points], "-o", color=ink)
        ends.append((*points[-1], short(kv, 18), ink))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([d or left for d in depths], labels=[f"{d // 1024}k" if d >= 1024 else str(d) for d in depths])
    axes.set_xticks([], minor=True)
    axes.set_xlim(left * 0.9, max(depths + [2 * left]) * 2.6)
    axis_ticks(axes, "y", [m * 10**e for e in range(-2, 5) for m in (1, 2, 5)])
    axes.set_xlabel("tokens in the cache")
    figure.set_label(title)
    place_names(axes, ends, right=True)
    return figure


def plot_inspect(answer: Row) -> Figure:
    """What the levels of each layer hold: errors, attention, bytes; and the distance of attention."""
    names = [level["name"] for level in answer["levels"]]
    layers = answer["layers"]
    nan = math.nan

    def table(value: Callable[[Row], float]) -> list[list[float]]:
        return [[value(level) for level in layer["levels"]] for layer in layers]

    panels = [
        ("error of K (normalized mean square)", True, table(lambda level: level["k"]["error"] or nan)),
        ("error of V (normalized mean square)", True, table(lambda level: level["v"]["error"] or nan)),
        ("share of attention, percent", False, table(lambda level: 100 * level["k"]["attention"] if level["k"]["rows"] else nan)),
        ("KiB", False, table(lambda level: (level["k"]["bytes"] + level["v"]["bytes"]) / 1024 or nan)),
    ]
    figure, axes = new_figure(12.4, 4.2 + 0.2 * len(layers), 3, 2)
    for (title, log, z), each in zip(panels, axes):
        values = [v for row in z for v in row if not math.isnan(v)] or [1.0]
        low, high = min(values), max(values)
        mesh = draw_heat(each, names, [layer["layer"] for layer in layers], z, (low, high if high > low else low + 1e-9), False, log)
        each.set_title(title)
        each.set_ylabel("layer")
        bar = figure.colorbar(mesh, ax=each, aspect=24, pad=0.01)
        bar.outline.set_visible(False)
    axes[4].plot([layer["layer"] for layer in layers], [layer["hellinger"] for layer in layers], "-o", color=color(0))
    axes[4].set_title("distance of attention from the full cache's (Hellinger)")
    axes[4].set_xlabel("layer")
    axes[4].set_ylim(bottom=0)
    axes[5].set_visible(False)
    return figure


def plot_tune(answer: Row) -> Figure:
    """KL over bits of the tuned recipe and of what it is compared with, and the KL of each layer alone."""
    figure, axes = new_figure(12.4, 4.4, 1, 3)
    curve, points = axes[0], []
    line = answer.get("estimates", [])
    curve.plot([x for x, _ in line], [y for _, y in line], "--", color=ROLES["soft"][0], linewidth=1)
    for i, r in enumerate(answer["results"]):
        name, ink = ("tuned" if r["kv"] == answer["kv"] else short(r["kv"], 18)), color(i)
        error = 1.96 * r["kl_stderr"]
        curve.errorbar(r["bits_per_value"], r["kl_mean"], [[min(error, 0.9 * r["kl_mean"])], [error]], fmt="o", color=ink, elinewidth=0.9)
        points.append((r["bits_per_value"], r["kl_mean"], name, ink))
    curve.set_xscale("log")
    curve.set_yscale("log")
    curve.margins(x=0.3, y=0.2)
    axis_ticks(curve, "x", [1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 16])
    curve.set_xlabel("bits per value, everything counted")
    curve.set_title("KL (nats); dashed: estimate")
    place_names(curve, points)
    s = answer["sensitivity"]
    values = [v for side in "kv" for row in s[side] for v in row if v and v > 0] or [1e-3, 1.0]
    for side, each in zip("kv", axes[1:]):
        z = [[v if v and v > 0 else math.nan for v in row] for row in s[side]]
        mesh = draw_heat(each, s["bits"], list(range(len(z))), z, (min(values), max(values)), False, True)
        each.set_title(f"KL of {side.upper()} of one layer alone")
        each.set_xlabel("bits")
        each.set_ylabel("layer")
    bar = figure.colorbar(mesh, ax=axes[1:], aspect=24, pad=0.01)
    bar.outline.set_visible(False)
    return figure


# ---- the page ----

STYLE = """
*{box-sizing:border-box}a{color:var(--c0)}nav a{margin-right:16px}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1248px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:26px;margin:8px 0 4px}h2{font-size:20px;margin:44px 0 6px;padding-top:18px;border-top:1px solid var(--grid)}
h3{font-size:16px;margin:30px 0 8px}p{margin:6px 0;max-width:78ch}.soft{color:var(--soft)}.small{font-size:13px}
.plots{display:grid;gap:16px;margin:14px 0;grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),1fr))}
figure{margin:0;padding:8px;border:1px solid var(--grid);border-radius:8px;overflow-x:auto;min-width:0;break-inside:avoid}
figure.wide{margin:14px 0}figcaption{font-weight:600;margin:2px 4px 4px}figure svg{display:block;width:100%;height:auto}figure.wide svg{min-width:720px}
.box{overflow-x:auto;border:1px solid var(--grid);border-radius:8px;margin:10px 0}
table{border-collapse:collapse;font-size:13.5px;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}
tr:last-child td,tr:last-child th{border-bottom:0}
th:first-child{text-align:left;position:sticky;left:0;background:var(--page);font-weight:500;max-width:240px;overflow:hidden;text-overflow:ellipsis}
thead th,thead th:first-child{background:var(--box);font-weight:600;vertical-align:bottom}
td i{font-style:normal;color:var(--soft)}tr.ref th,tr.ref td{color:var(--soft)}tbody tr:hover td,tbody tr:hover th{background:var(--box)}
.dot{display:inline-block;width:9px;height:9px;border-radius:5px;margin-right:7px;background:var(--c7)}
tr.ref .dot,.dot.ref{border-radius:0;background:none;border:2px solid var(--c7)}
pre{background:var(--box);border:1px solid var(--grid);border-radius:8px;padding:10px 12px;overflow-x:auto;font-size:13px;line-height:1.45}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;font-size:14px;margin:8px 0}dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}@media(max-width:660px){main{padding:12px 12px 48px}h1{font-size:22px}}
@media print{.box,pre{overflow-x:visible;white-space:pre-wrap}}
"""


def colors() -> str:
    light = [f"--{role}:{pair[0]}" for role, pair in ROLES.items()] + [f"--c{i}:{pair[0]}" for i, pair in enumerate(SERIES)]
    dark = [f"--{role}:{pair[1]}" for role, pair in ROLES.items()] + [f"--c{i}:{pair[1]}" for i, pair in enumerate(SERIES)]
    return (":root{color-scheme:light dark;--box:#f5f6f8;" + ";".join(light) + "}"
            "@media(prefers-color-scheme:dark){:root{--box:#1f2227;" + ";".join(dark) + "}}")  # fmt: skip


def tag(name: str, text: Any, attributes: str = "") -> str:
    return f"<{name}{' ' + attributes if attributes else ''}>{html.escape(str(text))}</{name}>"


def figures(plots: Iterable[Figure | None], wide: bool = False) -> str:
    kind, parts = " class=wide" if wide else "", []
    for plot in filter(None, plots):
        caption = tag("figcaption", plot.get_label()) if plot.get_label() else ""
        parts.append(f"<figure{kind}>{caption}{to_svg(plot, True)}</figure>\n")
    return "".join(parts) if wide or not parts else f'<div class="plots">{"".join(parts)}</div>\n'


def number(value: float | None, error: float | None) -> str:
    """A value with as many digits as its interval has a meaning for."""
    if value is None:
        return ""
    if error:
        digits = min(8, max(0, 1 - math.floor(math.log10(1.96 * error))))
        return f"{value:.{digits}f} <i>± {1.96 * error:.{digits}f}</i>"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table(head: list[str], rows: Sequence[tuple[str, int | None, list[str]]]) -> str:
    """rows: name, number of the color (None: no dot), cells that are HTML."""
    out = ["<div class=box><table><thead><tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr></thead><tbody>\n"]
    for name, which, cells in rows:
        dot = "" if which is None else f'<span class=dot{f" style=background:var(--c{which % (len(SERIES) - 1)})" if which >= 0 else ""}></span>'
        kind = " class=ref" if which is not None and which < 0 else ""
        title = html.escape(name, quote=True)
        out.append(f'<tr{kind}><th title="{title}">{dot}{title}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n")
    return "".join(out) + "</tbody></table></div>\n"


def facts(pairs: Iterable[tuple[str, Any]]) -> str:
    return "<dl>" + "".join(tag("dt", name) + tag("dd", value) for name, value in pairs if value not in (None, "")) + "</dl>\n"


def primary(by_kv: dict[str, Row]) -> str | None:
    """The metric that stands for a task."""
    names = [name for result in by_kv.values() for name in result["metrics"]]
    quality = [n for n in names if n not in COSTS and not n.endswith("_bytes") and not n.endswith("_change")]
    return next((name for name in ("kl_mean", "acc_norm", "rougeL") if name in quality), quality[0] if quality else None)


def cell(result: Row | None, name: str) -> str:
    metric = (result or {}).get("metrics", {}).get(name, {})
    if name.startswith("bits") and metric.get("value") is not None:
        return f"{metric['value']:.2f}"
    return number(metric.get("value"), metric.get("stderr"))


def results_section(results: Results, i: int) -> str:
    run, tasks = results.runs[0], results.tasks
    out = [f"<section id=g{i}>", tag("h2", results.title)]
    out.append(facts([("machine", run.get("cpu")), ("threads", run.get("n_threads")), ("lowkey", run.get("version")),
                      ("date", run.get("date")), ("model fingerprint", run.get("model_fingerprint"))]))  # fmt: skip
    if run.get("weights") == "shipped":
        out.append("<p class='soft small'>With quantized weights, activations are rounded to 8 bits. This turns any difference into noise, so "
                   "small values of KL are only noise. Its floor is llama.cpp:plain: the same f16 cache, summed in another order. Results "
                   "with weights in f32 do not have this noise.</p>\n")  # fmt: skip
    overview = [(task, name) for task in tasks for name in
                (("ppl", "kl_mean", "top1") if task == "text" else (primary(tasks[task]),)) if name]  # fmt: skip
    first = [next((by_kv[kv] for by_kv in tasks.values() if kv in by_kv), None) for kv in results.names]
    head = ["cache", "bits/value", "bytes/token"] + [f"{html.escape(task)}<br>{label(name)}" for task, name in overview]
    rows = [(kv, which, [cell(one, "bits_per_value"), cell(one, "bytes_per_token")] + [cell(tasks[task].get(kv), name) for task, name in overview])
            for (kv, which), one in zip(results.names.items(), first)]  # fmt: skip
    out += ["<h3>Overview</h3>\n", table(head, rows)]
    plots: list[Figure | None] = []
    for task, by_kv in tasks.items():
        if name := primary(by_kv):
            plots.append(plot_against_memory(results, task, name))
        names = dict.fromkeys(name for result in by_kv.values() for name in result.get("series", {}))
        plots += [plot_series(results, task, name) for name in names]
    out.append(figures(plots))
    for task, by_kv in tasks.items():
        maps = dict.fromkeys(name for result in by_kv.values() for name in result.get("heat", {}))
        for name in maps:
            out += [tag("h3", f"{task}: {label(name)}"), figures([plot_heat(results, task, name)], wide=True)]
    for task, by_kv in tasks.items():
        names = dict.fromkeys(name for result in by_kv.values() for name in result["metrics"])
        rows = [(kv, results.names[kv], [cell(result, name) for name in names]) for kv, result in by_kv.items()]
        out += [tag("h3", task), table(["cache"] + [label(name) for name in names], rows)]
    return "".join(out) + "</section>\n"


def bench_section(bench: Row, i: int) -> str:
    rows = bench["results"]
    out = [f"<section id=b{i}>", tag("h2", f"Speed of {bench.get('model', '')}")]
    out.append(facts([("file", bench["path"]), ("machine", bench.get("cpu")), ("threads", bench.get("n_threads")),
                      ("kernels", bench.get("kernels")), ("date", bench.get("date"))]))  # fmt: skip
    out.append(figures([plot_depth(rows, "decode_tps", "decode, tokens/s"), plot_depth(rows, "prefill_tps", "prefill, tokens/s")]))
    head = ["cache", "tokens", "decode tokens/s", "prefill tokens/s", "MiB", "bits/value"]
    lines = [(row["kv"], None, [f"{row['depth']:,}"] + [number(row.get(name), None) for name in ("decode_tps", "prefill_tps")] +
              [f"{row['cache_bytes'] / 2**20:,.1f}" if row.get("cache_bytes") else "", f"{row['bits_per_value']:.2f}" if row.get("bits_per_value") else ""]) for row in rows]  # fmt: skip
    return "".join(out) + table(head, lines) + "</section>\n"


def tune_section(answer: Row, i: int) -> str:
    out = [f"<section id=t{i}>", tag("h2", f"A recipe tuned for {answer['model']}"), facts([("file", answer["path"])])]
    out += ["<pre>", html.escape(answer["kv"].replace("; ", "\n")), "</pre>\n", figures([plot_tune(answer)], wide=True)]
    head = ["recipe", "bits/value", "bytes/token", "KL", "KL p99.9", "same top token", "perplexity"]
    rows = [("tuned" if r["kv"] == answer["kv"] else r["kv"], n,
             [f"{r['bits_per_value']:.3f}", number(r["bytes_per_token"], None), number(r["kl_mean"], r["kl_stderr"]),
              number(r["kl_p999"], None), number(r["top1"], None), number(r["ppl"], None)]) for n, r in enumerate(answer["results"])]  # fmt: skip
    return "".join(out) + table(head, rows) + "</section>\n"


def inspect_section(answer: Row, i: int) -> str:
    out = [f"<section id=i{i}>", tag("h2", f"{answer['model']} with {answer['kv']}")]
    out.append(f"<p class=soft>{answer['n_tok']:,} tokens, {answer['bits_per_value']:.2f} bits per value; attention of the last "
               f"{answer['n_query']}</p>\n")  # fmt: skip
    out.append(figures([plot_inspect(answer)], wide=True))
    head = ["level"] + [f"{side}: {name}" for side in "KV" for name in ("codec", "rows", "bytes", "bits/value", "error")] + ["attention"]
    rows = []
    for level in answer["levels"]:
        cells = []
        for side in "kv":
            h = level[side]
            cells += [html.escape(h["codec"]), f"{h['rows']:,}", f"{h['bytes']:,}", number(h["bits_per_value"], None), number(h["error"], None)]
        rows.append((level["name"], None, cells + [number(level["k"]["attention"], None)]))
    return "".join(out) + table(head, rows) + "</section>\n"


def page(report: Report, command: str) -> str:
    names = ([(f"g{i}", r.title) for i, r in enumerate(report.results)] + [(f"b{i}", f"Speed {b.get('model', '')}") for i, b in enumerate(report.bench)]
             + [(f"t{i}", f"Tuned {t['model']}") for i, t in enumerate(report.tune)]
             + [(f"i{i}", f"Inside {short(a['kv'])}") for i, a in enumerate(report.inspect)])  # fmt: skip
    nav = "".join(tag("a", text, f'href="#{name}"') for name, text in names)
    sections = ([results_section(r, i) for i, r in enumerate(report.results)] + [bench_section(b, i) for i, b in enumerate(report.bench)]
                + [tune_section(t, i) for i, t in enumerate(report.tune)] + [inspect_section(a, i) for i, a in enumerate(report.inspect)])  # fmt: skip
    commands = [run.get("command", "") for r in report.results for run in r.runs] + [b.get("command", "") for b in report.bench] + [command]
    made = "\n".join(dict.fromkeys(html.escape(line) for line in commands if line))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>lowkey: quality, memory and speed of KV caches</title><style>{colors()}{STYLE}</style></head>
<body><main><h1>Quality, memory and speed of key-value caches</h1>
<p>Every recipe is compared with the full f16 cache on the same tokens. <b>Bits/value</b> counts every byte of a cache: codes, scales, means,
exact rows, padding, states. <b>KL</b> is KL(full ‖ recipe) of next-token distributions, in nats. Intervals are 95&nbsp;%: value ± 1.96 standard
errors.</p>
<p class="small soft"><span class="dot" style="background:var(--c0)"></span>lowkey&emsp;<span class="dot ref"></span>llama.cpp’s cache types and
full caches, for reference</p>
<nav>{nav}<a href="#made">How this was made</a></nav>
{"".join(sections)}<section id="made"><h2>How this was made</h2><pre>{made}</pre></section>
</main></body></html>
"""


def picture(report: Report) -> str:
    """The first plot of what was read."""
    if report.inspect:
        return to_svg(plot_inspect(report.inspect[0]), False)
    if report.tune:
        return to_svg(plot_tune(report.tune[0]), False)
    figure = None
    for results in report.results:
        task, by_kv = next(iter(results.tasks.items()))
        figure = figure or plot_against_memory(results, task, primary(by_kv) or "", (6.4, 4.4))
    for bench in report.bench:
        figure = figure or plot_depth(bench["results"], "decode_tps", "milliseconds per decoded token", True, (7.0, 4.0))
    if figure is None:
        raise Bad("no result has a value to draw")
    return to_svg(figure, False)


def save(path: str, text: str) -> None:
    """Replace the file whole, or leave it as it was."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except OSError as error:
        if os.path.exists(part):
            os.unlink(part)
        raise Bad(f"cannot write {path}: {error.strerror}") from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lowkey.report", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("file", nargs="+", help="results of lowkey eval, perplexity, bench, tune or inspect")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the page, or with .svg at its end a picture")
    a = parser.parse_args()
    report = Report()
    try:
        for path in a.file:
            report.read(path)
        command = "python -m lowkey.report " + " ".join(sys.argv[1:])
        save(a.output, picture(report) if a.output.endswith(".svg") else page(report, command))
    except Bad as error:
        sys.exit(f"lowkey.report: {error}")


if __name__ == "__main__":
    main()
