#!/usr/bin/env bash
# lowkey report from outside. The page holds what the results say, none of it as markup, and needs no
# network. Bad input gives one line and leaves no page.
#
# LOWKEY_BIN: the program.
set -u

# shellcheck source=../support/program.sh
. "$(dirname "$0")/../support/program.sh" || exit 1
source=${LOWKEY_SOURCE:?set LOWKEY_SOURCE to the source directory}

# refused WORDS ARGUMENT...: `lowkey report` fails with these words and leaves no page, not even a part.
refused() {
  local words=$1
  shift
  bad "$words" report "$@"
  [ ! -e bad.html ] || fail "report $*: left a page"
  compgen -G '*.html.*' && fail "report $*: left a temporary file"
}

python3 "$source/tests/eval/sample_results.py" good.jsonl bench.json || fail "no samples"
python3 "$source/tests/eval/sample_results.py" hostile.jsonl hostile.json hostile || fail "no samples"
sed 's/"Sample-135M"/"Other-1B"/' good.jsonl >other.jsonl

# ---- pages --------------------------------------------------------------------------------------

good report good.jsonl other.jsonl --bench bench.json -o page.html
grep -qE '^wrote page.html, [0-9.]+ KiB$' out || fail "report says: $(cat out)"
good report hostile.jsonl --bench hostile.json -o hostile.html
good report --bench bench.json -o speed.html

python3 - <<'END' || failures=$((failures + 1))
import re
import sys
import xml.etree.ElementTree as xml
from html.parser import HTMLParser

failures = []
VOID = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """Counts tags and complains of tags that do not close."""

    def __init__(self, name):
        super().__init__()
        self.name, self.open, self.count, self.text = name, [], {}, []
        with open(name, encoding="utf-8") as file:
            self.source = file.read()
        self.feed(self.source)
        if self.open:
            failures.append(f"{name}: open at its end: {self.open}")

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)
        for key, value in attrs:
            if key.startswith("on") or key in ("src", "srcset"):
                failures.append(f"{self.name}: <{tag} {key}={value}>")
            if key == "href" and not value.startswith("#"):
                failures.append(f"{self.name}: links to {value}")

    def handle_startendtag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            failures.append(f"{self.name}: </{tag}> closes something else")

    def handle_data(self, data):
        self.text.append(data)


def check(true, what):
    if not true:
        failures.append(what)


page, hostile, speed = Page("page.html"), Page("hostile.html"), Page("speed.html")
for p in (page, hostile, speed):
    check(not re.search(r"url\(|@import|<script|nan|inf\b", p.source.replace("nano", "")), f"{p.name}: something foreign, or no number")
    for svg in re.findall(r"<svg.*?</svg>", p.source, re.S):
        root = xml.fromstring(svg)  # well formed
        width, height = float(root.get("width")), float(root.get("height"))
        for element in root.iter():
            for key, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
                if element.get(key) and not -1 <= float(element.get(key)) <= most + 1:
                    failures.append(f"{p.name}: {key}={element.get(key)} outside {width} x {height}")
text = "".join(page.text)
for words in ("Sample-135M, weights in f32", "Other-1B", "0.00550", "\u00b1", "KL by depth in the context", "Hellinger", "speed: decode tokens/s",
              "lowkey eval text needle passkey choice --kv best-3 -m sample.gguf --text 'a & b.txt'",
              "lowkey report good.jsonl other.jsonl --bench bench.json -o page.html"):
    check(words in text, f"page.html lacks {words!r}")
check(page.count["figure"] > 40, "page.html has too few figures")
check("<script>alert(1)</script>" in "".join(hostile.text), "a recipe's name is not shown as it is")
check("Sample <b>135M</b>" in "".join(hostile.text) and "b" in hostile.count, "the model's name is not shown as it is")
check(hostile.count["b"] == page.count["b"], "a model's name became markup")
check("speed: decode tokens/s" in "".join(speed.text), "speed.html has no plot")

# Names of points do not overlap.
for svg in re.findall(r"<svg.*?</svg>", page.source, re.S):
    boxes = [(float(x), float(y), 6 * len(name)) for x, y, name in re.findall(r'<text class="f" x="([\d.]+)" y="([\d.]+)">([^<]*)<', svg)]
    for i, (x, y, w) in enumerate(boxes):
        for u, v, z in boxes[:i]:
            check(not (abs(y - v) < 9 and x < u + z and u < x + w), f"names overlap at {x} {y}")
for failure in dict.fromkeys(failures):
    print("FAILED: " + failure)
sys.exit(bool(failures))
END

# ---- bad input ----------------------------------------------------------------------------------

printf 'not JSON\n' >text.jsonl
printf '{"type":"result","task":"text","kv":"f16","metrics":{}}\n' >headless.jsonl
head -n 1 good.jsonl >empty.jsonl
: >nothing.jsonl
{ head -n 3 good.jsonl; echo '{"type":"riddle"}'; } >riddle.jsonl
{ head -n 3 good.jsonl; echo '{"type":'; tail -n +4 good.jsonl; } >torn.jsonl
{ head -n 1 good.jsonl; echo '{"type":"result","task":"text","kv":"f16","metrics":{"ppl":{"value":"high"}}}'; } >word.jsonl
{ head -n 1 good.jsonl; echo '{"type":"result","task":"text","kv":"f16","metrics":{},"series":{"a":{"x":[1,2],"y":[1]}}}'; } >uneven.jsonl
{ head -n 1 good.jsonl; echo '{"type":"result","task":"text","kv":"f16","metrics":{},"heat":{"a":{"x":[1,2],"y":[1],"z":[[1]]}}}'; } >hole.jsonl
{ head -n 1 good.jsonl; echo '{"type":"result","task":"text","metrics":{}}'; } >nameless.jsonl
{ head -n 1 good.jsonl; echo '[1]'; } >array.jsonl
cp good.jsonl again.jsonl
printf '{"results":[]}' >empty.json
printf '[' >cut.json
printf '{"results":[{"kv":"f16","depth":0,"decode_tps":"fast"}]}' >fast.json

refused "no results: give files" -o bad.html
refused "no output: give -o" good.jsonl
refused "cannot open results missing.jsonl: No such file" missing.jsonl -o bad.html
refused "text.jsonl, line 1: not JSON" text.jsonl -o bad.html
refused "headless.jsonl, line 1: not results of 'lowkey eval'" headless.jsonl -o bad.html
refused "empty.jsonl has no results yet" empty.jsonl -o bad.html
refused "nothing.jsonl has no results yet" nothing.jsonl -o bad.html
refused 'riddle.jsonl, line 4: a line of type "riddle"' riddle.jsonl -o bad.html
refused "torn.jsonl, line 4: not JSON" torn.jsonl -o bad.html
refused "word.jsonl, line 2: a metric" word.jsonl -o bad.html
refused "uneven.jsonl, line 2: a series" uneven.jsonl -o bad.html
refused "hole.jsonl, line 2: a heat map" hole.jsonl -o bad.html
refused 'nameless.jsonl, line 2: a result without "task" or "kv"' nameless.jsonl -o bad.html
refused "array.jsonl, line 2: a line of type" array.jsonl -o bad.html
refused "good.jsonl and again.jsonl both have results of text with f16" good.jsonl again.jsonl -o bad.html
refused 'empty.json: no "results"' --bench empty.json -o bad.html
refused "cut.json, line 1: not JSON" --bench cut.json -o bad.html
refused "fast.json: a speed or a size" --bench fast.json -o bad.html
refused "cannot write missing/bad.html: cannot open its folder: No such file" good.jsonl -o missing/bad.html
refused "cannot write $work: not a regular file" good.jsonl -o "$work"

# An existing page stays as it was if the new one fails.
echo old >old.html
"$bin" report riddle.jsonl -o old.html 2>/dev/null && fail "a bad file makes a page"
[ "$(cat old.html)" = old ] || fail "a failed report replaced the old page"

[ $failures = 0 ] || exit 1
echo "report: all checks passed"
