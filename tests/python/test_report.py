"""Pages and pictures of lowkey.report: they hold what the results say, none of it as markup, and need no network."""
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from html.parser import HTMLParser

import pytest

pytest.importorskip("matplotlib")
import lowkey.report as report  # noqa: E402  pylint: disable=wrong-import-position,consider-using-from-import

SAMPLES = pathlib.Path(__file__).with_name("sample_results.py")
VOID = {"meta", "br", "link", "img"}
RUN = {"type": "run", "model": "m", "weights": "f32"}
RESULT = {"type": "result", "task": "text", "kv": "f16", "metrics": {}}


class Page(HTMLParser):
    """Counts tags, and refuses tags that do not close and whatever is loaded or run."""

    def __init__(self, path):
        super().__init__()
        self.open, self.count, self.text = [], {}, []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert not self.open
        assert not re.search(r"url\((?!#)|@import|<script|\bnan\b|\binf\b", self.source)

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)
        for key, value in attrs:
            assert not key.startswith("on") and key not in ("src", "srcset")
            assert key not in ("href", "xlink:href") or value.startswith("#")

    def handle_startendtag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("report")
    subprocess.run([sys.executable, SAMPLES, "good.jsonl", "bench.json"], cwd=path, check=True)
    subprocess.run([sys.executable, SAMPLES, "hostile.jsonl", "hostile.json", "hostile"], cwd=path, check=True)
    other = (path / "good.jsonl").read_text(encoding="utf-8").replace('"Sample-135M"', '"Other-1B"')
    (path / "other.jsonl").write_text(other, encoding="utf-8")
    layers = [{"layer": i, "hellinger": 0.1, "levels": []} for i in range(3)]
    hold = {"codec": "rot3", "rows": 8, "bytes": 512, "bits_per_value": 3.5, "error": 0.01, "attention": 0.5}
    for each in layers:
        each["levels"] = [{"name": name, "k": hold, "v": {**hold, "error": 0}} for name in ("sink 4", "body")]
    inspect = {"model": "M", "kv": "best-3", "n_tok": 8, "n_query": 1, "bits_per_value": 3.5, "levels": layers[0]["levels"], "layers": layers}
    (path / "inspect.json").write_text(json.dumps(inspect), encoding="utf-8")
    rows = [{"kv": kv, "bits_per_value": bits, "bytes_per_token": 9, "kl_mean": 0.1 / bits, "kl_stderr": 0.001, "kl_p999": 1, "top1": 0.9, "ppl": 9}
            for kv, bits in (("best-3", 3.0), ("body: rot3", 2.9))]
    tune = {"model": "M", "kv": "body: rot3", "results": rows, "estimates": [[2.0, 0.1], [4.0, 0.02]],
            "sensitivity": {"bits": [1, 2], "k": [[0.1, None]], "v": [[0.2, 0.0]]}}
    (path / "tune.json").write_text(json.dumps(tune), encoding="utf-8")
    return path


def make(folder, *arguments):
    """What `python -m lowkey.report` does in a folder: its line of error, or None."""
    before, here, sys.argv = sys.argv, os.getcwd(), ["report", *arguments]
    try:
        os.chdir(folder)
        report.main()
    except SystemExit as error:
        return str(error)
    finally:
        sys.argv = before
        os.chdir(here)
    return None


def test_pages(folder):
    assert make(folder, "good.jsonl", "other.jsonl", "bench.json", "inspect.json", "tune.json", "-o", "page.html") is None
    page = Page(folder / "page.html")
    text = "".join(page.text)
    for words in ("Sample-135M, weights in f32", "Other-1B", "0.00550", "±", "KL by depth in the context", "Hellinger", "decode, tokens/s",
                  "lowkey eval text needle passkey choice --kv best-3 -m sample.gguf --text 'a & b.txt'", "M with best-3", "tuned for M",
                  "python -m lowkey.report good.jsonl other.jsonl"):  # fmt: skip
        assert words in text
    assert page.count["figure"] >= 16 and page.count["table"] >= 13
    for svg in re.findall(r"<svg.*?</svg>", page.source, re.S):
        xml.fromstring(svg)


def test_names_are_not_markup(folder):
    assert make(folder, "good.jsonl", "bench.json", "-o", "plain.html") is None
    assert make(folder, "hostile.jsonl", "hostile.json", "-o", "hostile.html") is None
    page, hostile = Page(folder / "plain.html"), Page(folder / "hostile.html")
    assert "<script>alert(1)</script>" in "".join(hostile.text) and "Sample <b>135M</b>" in "".join(hostile.text)
    assert hostile.count["b"] == page.count["b"]


@pytest.mark.parametrize("name", ["good.jsonl", "bench.json", "inspect.json", "tune.json"])
def test_pictures(folder, name):
    first, second = f"{name}.1.svg", f"{name}.2.svg"
    for out in (first, second):
        report.FIGURES = itertools.count()
        assert make(folder, name, "-o", out) is None
    assert xml.parse(folder / first).getroot().tag.endswith("svg")
    assert (folder / first).read_bytes() == (folder / second).read_bytes()


def lines(*rows):
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


@pytest.mark.parametrize("content, words", [
    ("not JSON\n", "line 1: not JSON"),
    (lines(RESULT, RESULT), "line 1: not results"),
    (lines(RUN), "has no results yet"),
    ("", "has no results yet"),
    (lines(RUN, RESULT, {"type": "riddle"}), 'line 3: a line of type "riddle"'),
    (lines(RUN, '{"type":', RESULT), "line 2: not JSON"),
    (lines(RUN, {**RESULT, "metrics": {"ppl": {"value": "high"}}}), "line 2: a metric"),
    (lines(RUN, {**RESULT, "series": {"a": {"x": [1, 2], "y": [1]}}}), "line 2: a series"),
    (lines(RUN, {**RESULT, "heat": {"a": {"x": [1, 2], "y": [1], "z": [[1]]}}}), "line 2: a heat map"),
    (lines(RUN, {"type": "result", "task": "text", "metrics": {}}), 'line 2: a result without "task" or "kv"'),
    (lines(RUN, "[1]"), "line 2: a line of type"),
    ('{"results":[]}', "not results of"),
    ('{"results":[{"kv":"f16","depth":0,"decode_tps":"fast"}]}', "not results of"),
])  # fmt: skip
def test_bad_files(tmp_path, content, words):
    (tmp_path / "bad").write_text(content, encoding="utf-8")
    (tmp_path / "old.html").write_text("old", encoding="utf-8")
    error = make(tmp_path, "bad", "-o", "old.html")
    assert error and words in error and "\n" not in error
    assert (tmp_path / "old.html").read_text(encoding="utf-8") == "old" and len(list(tmp_path.iterdir())) == 2


def test_files_that_cannot_be_used(folder):
    assert "cannot open missing: No such file" in make(folder, "missing", "-o", "x.html")
    assert "cannot write no/x.html: No such file" in make(folder, "good.jsonl", "-o", "no/x.html")
    (folder / "again.jsonl").write_bytes((folder / "good.jsonl").read_bytes())
    assert "good.jsonl has results of text with f16 too" in make(folder, "good.jsonl", "again.jsonl", "-o", "x.html")
    assert not (folder / "x.html").exists()


def test_cut_off_lines_are_left_out(tmp_path):
    (tmp_path / "cut").write_text(lines(RUN, RESULT) + '{"type":"it', encoding="utf-8")
    assert make(tmp_path, "cut", "-o", "x.html") is None
