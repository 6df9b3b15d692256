"""Installs each package on bare Debian systems and lets it continue a text."""
import json
import os
import re
import shutil
import subprocess
import sys
import time

from build import DIST, KEYRING, SUITES, TOP, WORK, copy, die, digest, fresh, mirror_of_system, run, say, write

PROMPT = ["-p", "The capital of France is", "-n", "16", "--greedy"]
SNIPPET = """import lowkey
with lowkey.Model("/model.gguf") as model:
    print("".join(lowkey.Session(model, "best-3", n_ctx=512).stream("The capital of France is", max_tokens=16, temperature=0)))"""


def bare_system(suite):
    root = f"{WORK}/bare-{suite}"
    if not os.path.exists(f"{root}/done"):
        say(f"making a bare system of {suite}")
        shutil.rmtree(root, ignore_errors=True)
        run("debootstrap", "--variant=minbase", "--include=python3-venv", f"--keyring={KEYRING}", suite, root, mirror_of_system())
        write(f"{root}/done", "")
    return root


def in_root(root, command, shell=True):
    """Run a command in a root file system with /proc; return its output and the seconds that it took."""
    inner = ["/bin/sh", "-c", f"set -e; {command}"] if shell else command
    began = time.monotonic()
    result = subprocess.run(["unshare", "-m", "sh", "-c", 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"', root, *inner],
                            capture_output=True, text=True, check=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"})
    if result.returncode:
        die(f"{' '.join(inner)}: status {result.returncode}: {result.stderr.strip()[-2000:]}")
    return result.stdout, time.monotonic() - began


def check(suites):
    if os.geteuid() or not shutil.which("debootstrap"):
        print("package: skipped: --check needs root and debootstrap")
        return
    names = os.listdir(DIST) if os.path.isdir(DIST) else []
    product = {kind: next((name for name in names if re.search(end, name)), None)
               for kind, end in (("archive", r"\.tar\.gz$"), ("deb", r"\.deb$"), ("wheel", r"\.whl$"), ("oci", r"-oci\.tar$"))}
    if None in product.values():
        die("dist/ is not complete; run scripts/package first")
    run("sha256sum", "-c", "SHA256SUMS", cwd=DIST)
    model = run(f"{TOP}/scripts/fetch-model", "smollm2", output=True).strip()
    folder = product["archive"].removesuffix(".tar.gz")
    here = fresh(f"{WORK}/here")
    run("tar", "-xf", f"{DIST}/{product['archive']}", "-C", here)
    text = run(f"{here}/{folder}/bin/lowkey", "run", "-m", model, *PROMPT, output=True)
    prompt = " ".join(f"'{word}'" for word in PROMPT)
    print(f"suite     product   seconds  same text    (text: {text.strip()!r})")
    for suite in suites:
        for kind in product:
            root = f"{WORK}/root"
            shutil.rmtree(root, ignore_errors=True)
            if kind == "oci":
                os.makedirs(f"{root}/layout")
                run("tar", "-xf", f"{DIST}/{product[kind]}", "-C", f"{root}/layout")
                unpack_image(f"{root}/layout", root)
                command = ["/usr/bin/lowkey", "run", "-m", "/model.gguf", *PROMPT]
            else:
                run("cp", "-a", bare_system(suite), root)
                copy(f"{DIST}/{product[kind]}", root)
                command = {"archive": f"tar -xf /{product[kind]} && /{folder}/bin/lowkey run -m /model.gguf {prompt}",
                           "deb": f"apt-get install -qq /{product[kind]} >&2 && lowkey run -m /model.gguf {prompt}",
                           "wheel": "python3 -m venv /venv && /venv/bin/pip install -q --no-index --find-links /wheels "
                                    f"/{product[kind]} && /venv/bin/lowkey run -m /model.gguf {prompt} && /venv/bin/python -c '{SNIPPET}'"}[kind]
            copy(model, root, "model.gguf")
            if kind == "wheel":
                python, _ = in_root(root, "python3 -c 'import sys; print(*sys.version_info[:2], sep=\".\")'")
                run(sys.executable, "-m", "pip", "download", "-q", "-d", f"{root}/wheels", "--only-binary=:all:", "--python-version", python.strip(),
                    "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_27_x86_64", "cffi", "numpy")
            output, seconds = in_root(root, command, kind != "oci")
            same = output == text if kind != "wheel" else output.startswith(text) and output.count("\n") > text.count("\n")
            print(f"{suite:9} {kind:9} {seconds:7.1f}  {'yes' if same else 'NO: ' + repr(output)}", flush=True)
            if not same:
                sys.exit(1)
            shutil.rmtree(root)


def unpack_image(layout, root):
    """The layers of an OCI layout, verified by their digests."""
    def blob(entry):
        path = f"{layout}/blobs/{entry['digest'].replace(':', '/')}"
        if f"sha256:{digest(path)}" != entry["digest"] or os.path.getsize(path) != entry["size"]:
            die(f"{path} is not what the image says")
        return path

    def read(path):
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    manifest = read(blob(read(f"{layout}/index.json")["manifests"][0]))
    read(blob(manifest["config"]))
    for layer in manifest["layers"]:
        run("tar", "-xf", blob(layer), "-C", root)
