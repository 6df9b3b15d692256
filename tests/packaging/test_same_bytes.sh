#!/usr/bin/env bash
# scripts/package writes the same archive and .deb from the same files, whatever the folder, the user's umask, the files'
# times and the order in which they were made.
set -euo pipefail

source=${LOWKEY_SOURCE:?set LOWKEY_SOURCE to the source directory}
command -v dpkg-deb >/dev/null || { echo "dpkg-deb is not installed"; exit 77; }
python3 -c 'import tomllib' 2>/dev/null || { echo "scripts/package needs Python 3.11"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/make.py" <<'END'
import os, sys
source, dist, order = sys.argv[1:]
sys.path.insert(0, f"{source}/packaging")
sys.dont_write_bytecode = True
import build, products
build.DIST = products.DIST = dist
os.makedirs(dist)
machine = build.MACHINES[0]
tree = f"{machine.work}/tree"
names = ["bin/lowkey", "lib/lowkey/a/lowkey", "lib/lowkey/b/lowkey", "share/man/man1/lowkey.1", "share/lowkey/lowkey.service",
         "share/doc/lowkey/LICENSE", "share/doc/lowkey/CHANGELOG.md", "share/doc/lowkey/licenses/x", "share/doc/lowkey/licenses/b"]
for name in names if order == "forward" else names[::-1]:
    build.write(f"{tree}/{name}", f"text of {name}\n", 0o755 if name.endswith("/lowkey") else 0o644)
    os.utime(f"{tree}/{name}", (1e9, 1e9) if order == "forward" else None)
os.symlink("lowkey", f"{tree}/lib/lowkey/a/link")
products.make_archive(machine, "1.2", 1700000000)
products.make_deb(machine, "1.2", 1700000000)
END

# make FOLDER UMASK ORDER: packages of a small tree, in FOLDER/dist.
make() { (umask "$2" && LOWKEY_CACHE=$work/$1 python3 "$work/make.py" "$source" "$work/$1/dist" "$3"); }

make one 022 forward
make a/longer/path 077 backward
for file in lowkey-1.2-linux-x86_64.tar.gz lowkey_1.2_amd64.deb; do
  cmp "$work/one/dist/$file" "$work/a/longer/path/dist/$file" || {
    for folder in one a/longer/path; do
      tar -tvf "$work/$folder/dist/$file" 2>/dev/null || dpkg-deb -c "$work/$folder/dist/$file"
    done
    echo FAILED
    exit 1
  }
done
echo "test_same_bytes: passed"
