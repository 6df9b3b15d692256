#!/usr/bin/env bash
# Compare ROUGE with the Python package rouge-score on random texts: all figures are equal to 1e-6.
# The first run installs the package in the cache folder. Skipped (status 77) if that is not possible.
set -u

: "${LOWKEY_BUILD:?the build directory}"
program=$LOWKEY_BUILD/tests/test_rouge
[ -x "$program" ] || { echo "FAILED: no program at $program"; exit 1; }
version=0.1.2
packages=${LOWKEY_CACHE:-$HOME/.cache/lowkey}/rouge-score-$version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

have() { PYTHONPATH=$packages python3 -c 'import rouge_score.rouge_scorer' 2>/dev/null; }
if ! have; then
  python3 -m pip install -q --disable-pip-version-check --target "$work/packages" "rouge-score==$version" >"$work/log" 2>&1 &&
    mkdir -p "$(dirname "$packages")" && mv -T "$work/packages" "$packages" 2>>"$work/log"
  have || { echo "skipped: rouge-score $version cannot be installed: $(tail -n 1 "$work/log")"; exit 77; }
fi

PYTHONPATH=$packages python3 - "$program" "$work/pairs" <<'END'
import random, subprocess, sys
from rouge_score import rouge_scorer

program, path = sys.argv[1:]
rng = random.Random(1)
words = ["cache", "KEY", "value", "rows", "a", "I", "42", "x-y", "don't", "caf\u00e9", "\u0130s", "\u212a2", "level", "\u65e5\u672c", "z\u00df9"]
gaps = [" ", " ", " ", "  ", ", ", "\n", ".\n\n", "\t", "\u2003"]


def text(n):
    few = words[:rng.randint(2, len(words))]
    return "".join(rng.choice(few) + rng.choice(gaps) for _ in range(n))


pairs = [("", ""), ("", "a"), ("\n\n", "b\n"), ("a", "\n\na")]
for _ in range(500):
    reference = text(rng.choice([0, 1, 2, 5, 20, 80]))
    candidate = text(rng.choice([0, 1, 2, 5, 20, 80]))
    if rng.random() < 0.3:  # a candidate that copies much
        pieces = reference.split(" ")
        candidate = " ".join(p for p in pieces if rng.random() < 0.7) + candidate[:40]
    pairs.append((reference, candidate))
with open(path, "wb") as file:
    for pair in pairs:
        for side in pair:
            file.write(side.encode() + b"\0")

kinds = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
scorer = rouge_scorer.RougeScorer(kinds)
lines = subprocess.run([program, path], capture_output=True, text=True, check=True).stdout.splitlines()
assert len(lines) == len(pairs), f"{len(lines)} lines for {len(pairs)} pairs"
worst = 0.0
for line, (reference, candidate) in zip(lines, pairs):
    scores = scorer.score(reference, candidate)
    theirs = [getattr(scores[kind], field) for kind in kinds for field in ("precision", "recall", "fmeasure")]
    for mine, other in zip(map(float, line.split()), theirs, strict=True):
        worst = max(worst, abs(mine - other))
        if abs(mine - other) > 1e-6:
            sys.exit(f"FAILED: {mine}, but rouge-score has {other}: {reference!r} and {candidate!r}")
print(f"{len(pairs)} pairs, largest difference {worst:.2g}")
END
