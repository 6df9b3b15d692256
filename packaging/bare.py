"""Installs each package on bare systems of Debian and Ubuntu and lets it continue a text."""
import glob
import json
import os
import shutil
import subprocess
import sys
import time

from build import DIST, KEYRING, MACHINES, SUITES, TOP, WORK, copy, die, digest, fresh, mirror_of_system, run, say, write

PROMPT = ["-p", "The capital of France is", "-n", "16", "--greedy"]
# Products with 4-bit weights round their inputs, in another order on each kind of CPU.
EXACT_PROMPT = [*PROMPT, "--weights", "f32"]
SNIPPET = """import lowkey
with lowkey.Model("/model.gguf") as model:
    print("".join(lowkey.Session(model, "best-3", n_ctx=512).stream("The capital of France is", max_tokens=16, temperature=0)))"""
KINDS = {"archive": "lowkey-*-linux-{machine}.tar.gz", "deb": "lowkey_*_{debian}.deb", "wheel": "lowkey-*_{machine}.whl",
         "oci": "lowkey-*-oci-{debian}.tar"}


def bare_system(suite, machine):
    """A root file system. That of another machine is unpacked only, without Python: its packages are not configured."""
    root = f"{WORK}/bare-{suite}-{machine.name}"
    if not os.path.exists(f"{root}/done"):
        say(f"making a bare system of {suite} for {machine.name}")
        shutil.rmtree(root, ignore_errors=True)
        kind = ["--foreign", f"--arch={machine.debian}"] if machine.cross else ["--include=python3-venv"]
        # For Ubuntu debootstrap has a mirror and a keyring. universe has python3-venv.
        source = [f"--keyring={KEYRING}", suite, root, mirror_of_system()] if suite in SUITES else ["--components=main,universe", suite, root]
        run("debootstrap", "--variant=minbase", *kind, *source)
        write(f"{root}/done", "")
    return root


def in_root(root, command, machine, shell=True):
    """Run a command in a root file system with /proc; return its output and the seconds that it took. Programs of another
    machine run in qemu-user, which is registered in a name space of their own."""
    inner = ["/bin/sh", "-c", f"set -e; {command}"] if shell else command
    spaces, before = ["-m"], ""
    if machine.cross:
        spaces = ["--user", "--map-root-user", "-m", "--pid", "--fork"]
        with open(f"/usr/share/binfmts/qemu-{machine.name}", encoding="utf-8") as file:
            entry = dict(line.split(maxsplit=1) for line in file.read().splitlines() if " " in line)
        line = f":qemu:M::{entry['magic']}:{entry['mask']}:/usr/bin/qemu-{machine.name}-static:F"
        before = f"mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && printf %s '{line}' >/proc/sys/fs/binfmt_misc/register && "
    began = time.monotonic()
    result = subprocess.run(["unshare", *spaces, "sh", "-c", before + 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"', root, *inner],
                            capture_output=True, text=True, check=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"})
    if result.returncode:
        die(f"{' '.join(inner)}: status {result.returncode}: {result.stderr.strip()[-2000:]}")
    return result.stdout, time.monotonic() - began


def check(suites):
    if os.geteuid() or not shutil.which("debootstrap"):
        print("package: skipped: --check needs root and debootstrap")
        return
    for suite in suites:
        if not os.path.exists(f"/usr/share/debootstrap/scripts/{suite}"):
            die(f"debootstrap does not know {suite}")
    run("sha256sum", "-c", "SHA256SUMS", cwd=DIST)
    model = run(f"{TOP}/scripts/fetch-model", "smollm2", output=True).strip()
    text = exact = None
    for machine in MACHINES:
        product = {kind: glob.glob(f"{DIST}/{name.format(machine=machine.name, debian=machine.debian)}") for kind, name in KINDS.items()}
        if machine.cross and not any(product.values()):
            continue
        if [] in product.values():
            die("dist/ is not complete; run scripts/package first")
        if not machine.cross:
            here = fresh(f"{WORK}/here")
            run("tar", "-xf", product["archive"][0], "-C", here, "--strip-components=1")
            text = run(f"{here}/bin/lowkey", "run", "-m", model, *PROMPT, output=True)
            exact = run(f"{here}/bin/lowkey", "run", "-m", model, *EXACT_PROMPT, output=True)
            print(f"machine   suite     product   seconds  same text    (text: {text.strip()!r})")
        elif not os.path.exists(f"/usr/bin/qemu-{machine.name}-static"):
            print(f"package: skipped {machine.name}: qemu-user-static is not installed")
            continue
        for suite in ["bookworm"] if machine.cross else suites:
            for kind in ["archive", "oci"] if machine.cross else KINDS:
                check_one(machine, suite, kind, product[kind][0], model,
                          exact if machine.cross else text)


def check_one(machine, suite, kind, path, model, text):
    """Install a package in a file system, and compare the text that the program continues."""
    words = EXACT_PROMPT if machine.cross else PROMPT
    prompt = " ".join(f"'{word}'" for word in words)
    root, name = f"{WORK}/root", os.path.basename(path)
    shutil.rmtree(root, ignore_errors=True)
    if kind == "oci":
        os.makedirs(f"{root}/layout")
        run("tar", "-xf", path, "-C", f"{root}/layout")
        unpack_image(f"{root}/layout", root)
        command = ["/usr/bin/lowkey", "run", "-m", "/model.gguf", *words]
    else:
        run("cp", "-a", bare_system(suite, machine), root)
        copy(path, root)
        unpack = f"tar -xf /{name} && "
        if machine.cross:  # tar cannot change modes in qemu-user 7.2
            run("tar", "-xf", path, "-C", root)
            unpack = ""
        command = {"archive": f"{unpack}/{name.removesuffix('.tar.gz')}/bin/lowkey run -m /model.gguf {prompt}",
                   "deb": f"apt-get install -qq /{name} >&2 && lowkey run -m /model.gguf {prompt}",
                   "wheel": "python3 -m venv /venv && /venv/bin/pip install -q --no-index --find-links /wheels "
                            f"/{name} && /venv/bin/lowkey run -m /model.gguf {prompt} && /venv/bin/python -c '{SNIPPET}'"}[kind]
    copy(model, root, "model.gguf")
    if kind == "wheel":
        python, _ = in_root(root, "python3 -c 'import sys; print(*sys.version_info[:2], sep=\".\")'", machine)
        run(sys.executable, "-m", "pip", "download", "-q", "-d", f"{root}/wheels", "--only-binary=:all:", "--python-version", python.strip(),
            "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_27_x86_64", "cffi", "numpy")
    output, seconds = in_root(root, command, machine, kind != "oci")
    same = output == text if kind != "wheel" else output.startswith(text) and output.count("\n") > text.count("\n")
    print(f"{machine.name:9} {suite:9} {kind:9} {seconds:7.1f}  {'yes' if same else 'NO: ' + repr(output)}", flush=True)
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
