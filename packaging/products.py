"""Writes the packages of a prefix that build.py has filled: the same bytes for the same files."""
import base64
import csv
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
import time
import tomllib
import zipfile

from build import DIST, GLIBC, WORK, copy, fresh, run, unpack_deb, write


def tar_bytes(tree, top, when, special=()):
    """A tar file of a folder: sorted, owned by root, with one time. `special`: (path, mode, owner)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
        paths = [tree]
        for folder, folders, names in os.walk(tree):
            paths += [f"{folder}/{name}" for name in folders + names]
        for path in sorted(paths):
            info = archive.gettarinfo(path, os.path.normpath(top + path[len(tree):]))
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = when
            info.mode = 0o755 if info.isdir() or info.mode & 0o111 else 0o644
            for name, mode, owner in special:
                if info.name == name:
                    info.mode, info.uid, info.gid = mode, owner, owner
            if info.isreg():
                with open(path, "rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    return data.getvalue()


def make_archive(machine, version, when):
    """Compressed by gzip, which every system has."""
    name = f"lowkey-{version}-linux-{machine.name}"
    with open(f"{DIST}/{name}.tar.gz", "wb") as file:
        file.write(gzip.compress(tar_bytes(f"{machine.work}/tree", name, when), 6, mtime=0))


def make_deb(machine, version, when):
    root = fresh(f"{machine.work}/deb")
    shutil.copytree(f"{machine.work}/tree", f"{root}/usr", symlinks=True, dirs_exist_ok=True)
    doc = f"{root}/usr/share/doc/lowkey"
    os.makedirs(f"{root}/usr/lib/systemd/system")
    with open(f"{root}/usr/share/lowkey/lowkey.service", encoding="utf-8") as file:
        write(f"{root}/usr/lib/systemd/system/lowkey.service", file.read().replace("/usr/local/bin/", "/usr/bin/")
              .replace("Copy it to /etc/systemd/system, then create", "Before it is started, create"))
    os.remove(f"{root}/usr/share/lowkey/lowkey.service")
    text = ["Files: *\nLicense: MIT\n"]
    for name in ["../LICENSE"] + sorted(os.listdir(f"{doc}/licenses")):
        with open(os.path.normpath(f"{doc}/licenses/{name}"), encoding="utf-8") as file:
            text.append(f"---- {name.replace('../LICENSE', 'lowkey')} ----\n\n{file.read()}")
    shutil.rmtree(f"{doc}/licenses")
    os.remove(f"{doc}/LICENSE")
    write(f"{doc}/copyright", "\n".join(text[1:]))
    for path, name in ((f"{root}/usr/share/man/man1/lowkey.1", None), (f"{doc}/CHANGELOG.md", f"{doc}/changelog")):
        with open(path, "rb") as file:
            data = gzip.compress(file.read(), 9, mtime=0)
        os.remove(path)
        with open(f"{name or path}.gz", "wb") as file:
            file.write(data)
        os.chmod(f"{name or path}.gz", 0o644)
    size = sum(os.lstat(f"{folder}/{name}").st_size for folder, _, names in os.walk(root) for name in names) // 1024
    write(f"{root}/DEBIAN/control", f"Package: lowkey\nVersion: {version}\nArchitecture: {machine.debian}\nSection: science\nPriority: optional\n"
          f"Maintainer: The lowkey authors <lowkey@localhost>\nInstalled-Size: {size}\nDepends: libc6 (>= {GLIBC[0]}.{GLIBC[1]})\n"
          "Suggests: python3-pip, unzip\nDescription: LLM inference whose key-value cache stays compressed\n"
          " A chat, an OpenAI-compatible server with a web page, a command line and a C library\n"
          " that run GGUF models on the CPU. The cache of keys and values takes a fifth of the\n"
          " memory of an f16 cache, or less.\n")
    for folder, _, names in os.walk(root):  # whatever the umask and the times are; dpkg-deb only changes later times
        os.chmod(folder, 0o755)
        for path in (f"{folder}/{name}" for name in names):
            os.utime(path, (when, when), follow_symlinks=False)
    run("dpkg-deb", "-Zxz", "-z1", "--root-owner-group", "--build", root, f"{DIST}/lowkey_{version}_{machine.debian}.deb", env={"SOURCE_DATE_EPOCH": str(when)})


def make_wheel(machine, version, when):
    source, tree = f"{WORK}/source", f"{machine.work}/tree"
    tag = f"py3-none-manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine.name}"
    files = {}  # path in the wheel: (bytes, executable)

    def add(path, name):
        with open(path, "rb") as file:
            files[name] = (file.read(), os.access(path, os.X_OK))

    for folder, _, names in os.walk(f"{source}/python/lowkey"):
        for name in names:
            path = f"{folder}/{name}"
            add(path, os.path.relpath(path, f"{source}/python"))
    with open(f"{source}/pyproject.toml", "rb") as file:
        description = tomllib.load(file)
    project = description["project"]
    [cffi] = [name for name in description["build-system"]["requires"] if name.startswith("cffi")]
    run(sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target", f"{WORK}/cffi", cffi)
    api = f"{WORK}/_api.py"
    run(sys.executable, f"{source}/python/generate_api.py", api,
        *(f"{source}/include/{name}.h" for name in ("lowkey", "lowkey_serve", "lowkey_draft", "lowkey_cluster", "lowkey_lab")),
        env={"PYTHONPATH": f"{WORK}/cffi"})
    add(api, "lowkey/_api.py")
    for part in ("bin", "lib/lowkey", "share/lowkey", "share/doc/lowkey/licenses"):
        for folder, _, names in os.walk(f"{tree}/{part}"):
            for path in (f"{folder}/{name}" for name in names):
                if not re.search(r"\.so\.|\.service$", path):
                    add(path, "lowkey/" + os.path.relpath(path, tree))
    with open(f"{source}/{project['readme']}", encoding="utf-8") as file:
        readme = file.read()
    info = f"lowkey-{version}.dist-info"
    extras = "".join(f"Provides-Extra: {name}\n" + "".join(f'Requires-Dist: {need}; extra == "{name}"\n' for need in needs)
                     for name, needs in project["optional-dependencies"].items())
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: lowkey\nVersion: {version}\nSummary: {project['description']}\nLicense: {project['license']}\n"
                    f"Requires-Python: {project['requires-python']}\n" + "".join(f"Requires-Dist: {need}\n" for need in project["dependencies"])
                    + extras + f"Description-Content-Type: text/markdown\n\n{readme}",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: scripts/package\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "entry_points.txt": "[console_scripts]\nlowkey = lowkey._level:run_program\n",
    }
    for name, text in texts.items():
        files[f"{info}/{name}"] = (text.encode(), False)
    add(f"{source}/LICENSE", f"{info}/LICENSE")
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name in sorted(files):
        code = base64.urlsafe_b64encode(hashlib.sha256(files[name][0]).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={code}", len(files[name][0])])
    rows.writerow([f"{info}/RECORD", "", ""])
    files[f"{info}/RECORD"] = (record.getvalue().encode(), False)
    with zipfile.ZipFile(f"{DIST}/lowkey-{version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED, compresslevel=6) as wheel:
        for name in sorted(files, key=lambda name: (name.startswith(info), name)):
            entry = zipfile.ZipInfo(name, time.gmtime(when)[:6])
            entry.external_attr = (0o100755 if files[name][1] else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, files[name][0])


def make_oci(machine, version, when, commit):
    """An image with one layer, as a tar file of an OCI layout: glibc, and what the .deb has."""
    root = fresh(f"{machine.work}/image")
    unpack_deb(machine, machine.image_libc, root)
    for path in ("usr/share/doc/libc6/changelog.Debian.gz", "usr/share/lintian", "etc"):
        full = f"{root}/{path}"
        if os.path.isdir(full):
            shutil.rmtree(full)
        elif os.path.exists(full):
            os.remove(full)
    shutil.copytree(f"{machine.work}/tree", f"{root}/usr", symlinks=True, dirs_exist_ok=True)
    write(f"{root}/etc/passwd", "root:x:0:0::/:\nlowkey:x:10001:10001::/sessions:\n")
    for name in ("sessions", "tmp", "proc"):
        os.makedirs(f"{root}/{name}")
    layer = tar_bytes(root, ".", when, [("sessions", 0o700, 10001), ("tmp", 0o1777, 0)])
    layout, blobs = fresh(f"{machine.work}/oci"), f"{machine.work}/oci/blobs/sha256"
    os.makedirs(blobs)

    def blob(data, media):
        name = hashlib.sha256(data).hexdigest()
        with open(f"{blobs}/{name}", "wb") as file:
            file.write(data)
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": f"sha256:{name}", "size": len(data)}

    def text(value):
        return json.dumps(value, sort_keys=True).encode()

    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))
    config = blob(text({
        "architecture": machine.debian, "os": "linux", "created": created,
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        "history": [{"created": created, "created_by": "scripts/package"}],
        "config": {"User": "10001:10001", "WorkingDir": "/sessions", "Volumes": {"/sessions": {}}, "ExposedPorts": {"8080/tcp": {}},
                   "Env": ["PATH=/usr/bin"], "StopSignal": "SIGTERM", "Labels": {"org.opencontainers.image.revision": commit},
                   "Entrypoint": ["/usr/bin/lowkey", "serve", "--host", "0.0.0.0", "--port", "8080", "--sandbox"]}}), "config.v1+json")
    manifest = blob(text({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config,
                          "layers": [blob(gzip.compress(layer, 6, mtime=0), "layer.v1.tar+gzip")]}), "manifest.v1+json")
    manifest["annotations"] = {"org.opencontainers.image.ref.name": version}
    for name, value in (("oci-layout", {"imageLayoutVersion": "1.0.0"}), ("index.json", {"schemaVersion": 2, "manifests": [manifest]})):
        with open(f"{layout}/{name}", "wb") as file:
            file.write(text(value))
    with open(f"{DIST}/lowkey-{version}-oci-{machine.debian}.tar", "wb") as file:
        file.write(tar_bytes(layout, ".", when))
