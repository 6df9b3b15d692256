"""Compiles the commit for packages: a prefix with one program and library for each level of packaging/levels.

scripts/package says how. Everything is in $LOWKEY_CACHE/package; output of commands goes to package.log there.
"""
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile

TOP = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
DIST = os.path.join(TOP, "dist")
WORK = os.path.join(os.environ.get("LOWKEY_CACHE") or os.path.expanduser("~/.cache/lowkey"), "package")
JOBS = os.environ.get("LOWKEY_JOBS") or str(os.cpu_count())
GLIBC = (2, 28)
SUITES = ["bullseye", "bookworm", "trixie"]
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MULTIARCH = "x86_64-linux-gnu"

# Packages of Debian: (suite, name, version, SHA-256 of the file).
SYSROOT = [
    ("bullseye", "libc6", "2.31-13+deb11u11", "05f7264da867b37f4c5ce49266b558ea1e81e05a9464f623152fca70f3550282"),
    ("bullseye", "libc6-dev", "2.31-13+deb11u11", "e7f7b45d9c5cfcf37609f0b6efd3c645272c812144703af89dfd32218fcb0fd3"),
]
IMAGE_LIBC = ("bookworm", "libc6", "2.36-9+deb12u14", "ba4f88f73dbc3ae9055f3c20f4523bfdbaf1ad13ff95e258924f77d20b4fbedf")
# Sources of Debian: (name, version, file, SHA-256 of the file). libmicrohttpd.a of Debian needs GnuTLS; libjansson.a is not
# compiled for shared libraries.
JANSSON = ("jansson", "2.14-2", "jansson_2.14.orig.tar.gz",
           "c739578bf6b764aa0752db9a2fdadcfe921c78f1228c7ec0bb47fa804c55d17b")
MICROHTTPD = ("libmicrohttpd", "0.9.75-6", "libmicrohttpd_0.9.75.orig.tar.xz",
              "796e7e217a4802679fcac667a4e98501c53185dcf50ca0583870e84192620131")

# Installed packages of this system whose static libraries are linked in. Their licenses are part of each package.
LINKED = ["libjansson-dev", "libedit-dev", "libncurses-dev", "libbsd-dev", "libmd-dev", "liblapacke-dev", "liblapack-dev",
          "libblas-dev", "libgfortran-12-dev", "libstdc++-12-dev", "libgcc-12-dev", "libmicrohttpd-dev", "libxxhash-dev", "libjs-marked"]
GCC_DIR = f"/usr/lib/gcc/{MULTIARCH}/12"
LIB_DIR = f"/usr/lib/{MULTIARCH}"
ARCHIVES = [f"{GCC_DIR}/lib{name}.a" for name in ("stdc++", "gcc_eh", "gfortran", "quadmath")] + [
    f"{LIB_DIR}/lib{name}.a" for name in ("edit", "tinfo", "bsd", "md", "lapacke")] + [
    f"{LIB_DIR}/lapack/liblapack.a", f"{LIB_DIR}/blas/libblas.a"]
HEADERS = ["/usr/include/jansson.h", "/usr/include/jansson_config.h", "/usr/include/histedit.h", "/usr/include/editline",
           "/usr/include/xxhash.h", "/usr/include/lapack.h", "/usr/include/lapacke.h", "/usr/include/lapacke_config.h",
           "/usr/include/lapacke_mangling.h", "/usr/include/lapacke_utils.h", f"/usr/include/{MULTIARCH}/cblas-netlib.h",
           f"/usr/include/{MULTIARCH}/cblas_mangling.h", f"/usr/include/{MULTIARCH}/cblas_f77.h"]
JANSSON_HAS = ["STDINT_H", "UNISTD_H", "FCNTL_H", "SYS_TYPES_H", "SYS_TIME_H", "SCHED_H", "ENDIAN_H", "GETPID",
               "GETTIMEOFDAY", "OPEN", "CLOSE", "READ", "SCHED_YIELD", "LOCALECONV", "ATOMIC_BUILTINS"]
# What pkg-config says about them, instead of the system's files.
PKG_CONFIG = {"jansson": "-ljansson", "libedit": "-ledit -ltinfo -lbsd -lmd", "libmicrohttpd": "-lmicrohttpd",
              "lapacke": "-llapacke -llapack -lblas -lgfortran -lquadmath", "openblas": ""}
# Functions that glibc 2.29 gave a new version; packaging/glibc.c calls the old one.
WRAPPED = ["exp", "exp2", "log", "log2", "pow"]


def die(text):
    sys.exit(f"package: {text}")


def say(text):
    print(f"package: {text}", file=sys.stderr, flush=True)


def run(*command, output=False, **options):
    """Run a command. Its output goes to package.log, or is returned."""
    environment = {**os.environ, **options.pop("env", {})}
    with open(f"{WORK}/package.log", "a", encoding="utf-8") as log:
        log.write(f"\n+ {' '.join(command)}\n")
        log.flush()
        result = subprocess.run(command, env=environment, text=True, check=False, stderr=log,
                                stdout=subprocess.PIPE if output else log, **options)
    if result.returncode:
        die(f"{command[0]} failed; see {WORK}/package.log")
    return result.stdout


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fresh(path):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


def write_new(path, text, mode):
    """As write, unless the file has this text: for compilers, whose time ccache compares."""
    if not os.path.exists(path) or open(path, encoding="utf-8").read() != text:
        write(path, text, mode)


def copy(source, folder, name=None, mode=0o644):
    os.makedirs(folder, exist_ok=True)
    if os.path.isdir(source):
        shutil.copytree(source, f"{folder}/{os.path.basename(source)}", dirs_exist_ok=True)
        return
    target = f"{folder}/{name or os.path.basename(source)}"
    shutil.copyfile(source, target)
    os.chmod(target, mode)


def levels():
    with open(f"{TOP}/packaging/levels", encoding="utf-8") as file:
        return [line.split()[0] for line in file if not line.startswith("#")]


# ---- what Debian has ----


def apt(*arguments, cwd=WORK):
    """Run apt-get for the pinned suites, without touching the system's lists."""
    folder = f"{WORK}/apt"
    if not os.path.exists(f"{folder}/done"):
        for name in ("lists/partial", "cache/archives/partial"):
            os.makedirs(f"{folder}/{name}", exist_ok=True)
        mirror = mirror_of_system()
        source = f"[signed-by={KEYRING}] {mirror}"
        write(f"{folder}/sources.list", "".join(f"deb {source} {suite} main\n" for suite in SUITES[:2])
              + f"deb-src {source} bookworm main\n")
        write(f"{folder}/apt.conf", f'Dir::State "{folder}";\nDir::State::status "/dev/null";\nDir::Cache "{folder}/cache";\n'
              f'Dir::Etc::sourcelist "{folder}/sources.list";\nDir::Etc::sourceparts "/dev/null";\nAPT::Sandbox::User "root";\n')
        run("apt-get", "update", env={"APT_CONFIG": f"{folder}/apt.conf"})
        write(f"{folder}/done", "")
    run("apt-get", *arguments, cwd=cwd, env={"APT_CONFIG": f"{folder}/apt.conf"})


def mirror_of_system():
    uris = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian", output=True).split()
    if not uris:
        die("apt has no sources of Debian, from which the pinned packages could come")
    return uris[0]


def download(name, sha256, *command):
    folder = f"{WORK}/download"
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/{name}"
    if not os.path.exists(path):
        apt(*command, cwd=folder)
    if not os.path.exists(path) or digest(path) != sha256:
        die(f"{path} is not the file that scripts/package pins (SHA-256 {sha256})")
    return path


def unpack_deb(pin, folder):
    _, name, version, sha256 = pin
    run("dpkg-deb", "-x", download(f"{name}_{version}_amd64.deb", sha256, "download", f"{name}={version}"), folder)


def make_sysroot():
    """glibc of Debian 11, with the kernel's and gcc's headers of this system; and compilers that use it."""
    root = fresh(f"{WORK}/sysroot")
    for pin in SYSROOT:
        unpack_deb(pin, root)
    for folder, _, names in os.walk(root):
        for path in (f"{folder}/{name}" for name in names):
            if os.path.islink(path) and os.readlink(path).startswith("/"):
                target = root + os.readlink(path)
                os.remove(path)
                os.symlink(target, path)
    for name in ("linux", "asm-generic", f"{MULTIARCH}/asm", "c++/12", f"{MULTIARCH}/c++/12"):
        path = f"{root}/usr/include/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.lexists(path):
            os.symlink(f"/usr/include/{name}", path)
    for name, compiler in (("cc", "gcc-12"), ("c++", "g++-12")):
        write_new(f"{WORK}/bin/{name}", f'#!/bin/sh\nexec {compiler} --sysroot={root} -B{root}/usr/lib/{MULTIARCH} '
              f'-ffile-prefix-map={WORK}=. "$@"\n', 0o755)


def unpack_source(pin):
    name, version, file, sha256 = pin
    folder = fresh(f"{WORK}/{name}")
    run("tar", "-xf", download(file, sha256, "source", "--download-only", f"{name}={version}"), "-C", folder, "--strip-components=1")
    return folder


def make_static():
    """Static libraries, their headers, and pkg-config files that name only them."""
    static = f"{WORK}/static"
    fresh(static)
    for path in ARCHIVES:
        if not os.path.exists(path):
            die(f"{path} is missing; install {' '.join(LINKED)}")
        copy(path, f"{static}/lib")
    for path in HEADERS:
        copy(path, f"{static}/include")
    os.rename(f"{static}/include/cblas-netlib.h", f"{static}/include/cblas.h")
    for name, libs in PKG_CONFIG.items():
        write(f"{static}/pc/{name}.pc", f"Name: {name}\nDescription: static\nVersion: 1\nCflags: -I{static}/include\n"
              f"Libs: -L{static}/lib {libs}\n")
    compiler = f"{WORK}/bin/cc"
    run(compiler, "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-c", f"{TOP}/packaging/glibc.c", "-o", f"{static}/glibc.o")
    source = unpack_source(JANSSON)
    files = sorted(name for name in os.listdir(f"{source}/src") if name.endswith(".c"))
    write(f"{source}/src/jansson_private_config.h", "")
    run(compiler, "-O2", "-fPIC", *(f"-DHAVE_{name}" for name in JANSSON_HAS), "-DUSE_URANDOM", "-DINITIAL_HASHTABLE_ORDER=3",
        f"-I{static}/include", "-c", *files, cwd=f"{source}/src")
    run("ar", "crsD", f"{static}/lib/libjansson.a", *(name[:-1] + "o" for name in files), cwd=f"{source}/src")
    source = unpack_source(MICROHTTPD)
    run("./configure", "-q", "--disable-https", "--disable-shared", "--disable-doc", "--disable-examples", "--disable-curl",
        "--disable-nls", "--disable-dependency-tracking", cwd=source, env={"CC": compiler, "CFLAGS": "-O2 -fPIC"})
    run("make", "-C", f"{source}/src/microhttpd", f"-j{JOBS}", "libmicrohttpd.la")
    copy(f"{source}/src/microhttpd/.libs/libmicrohttpd.a", f"{static}/lib")
    copy(f"{source}/src/include/microhttpd.h", f"{static}/include")


# ---- building ----


def build(tree, version):
    """Compile the commit once, and link it with ggml for each level. Fill `tree` as a prefix."""
    source, static, out = f"{WORK}/source", f"{WORK}/static", f"{WORK}/build"
    compilers = {"CC": f"{WORK}/bin/cc", "CXX": f"{WORK}/bin/c++", "LDFLAGS": ""}
    say("building llama.cpp for the levels")
    prefix = run("scripts/deps", output=True, cwd=source, env={**compilers, "LOWKEY_LEVELS": "1", "LOWKEY_CACHE": f"{WORK}/llama-cache",
                                                               "LOWKEY_JOBS": JOBS}).strip()
    llama = f"{WORK}/llama"
    shutil.rmtree(llama, ignore_errors=True)
    shutil.copytree(prefix, llama)
    link = f"{static}/glibc.o -lm -L{static}/lib -static-libgcc " + " ".join(f"-Wl,--wrap={name}" for name in WRAPPED)
    say("building lowkey")
    fresh(out)
    run("cmake", "-S", source, "-B", out, "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_INSTALL_PREFIX=/usr",
        "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG",
        "-DLOWKEY_TESTS=OFF", "-DLOWKEY_EXAMPLES=OFF", f"-DCMAKE_PREFIX_PATH={llama}", f"-DLK_XXHASH_INCLUDE={static}/include",
        f"-DCMAKE_EXE_LINKER_FLAGS={link}", f"-DCMAKE_SHARED_LINKER_FLAGS={link}", "-DCMAKE_SKIP_RPATH=ON",
        env={**compilers, "PKG_CONFIG_LIBDIR": f"{static}/pc"})
    for level in levels():
        shutil.copyfile(f"{llama}/lib/{level}/libggml-cpu.a", f"{llama}/lib/libggml-cpu.a")
        targets = ["lowkey_program", "lowkey"]
        if level == levels()[0]:  # the documentation is written by running the program
            targets.append("lowkey_docs")
        run("cmake", "--build", out, "-j", JOBS, "--target", *targets)
        folder = f"{tree}/lib/lowkey/{level}"
        library = os.path.realpath(f"{out}/liblowkey.so")
        soname = ".".join(os.path.basename(library).split(".")[:4])
        copy(f"{out}/lowkey", folder, mode=0o755)
        copy(library, folder, soname)
        os.symlink(soname, f"{folder}/liblowkey.so")
        for name in ("lowkey", soname):
            run("strip", f"{folder}/{name}")
            check_symbols(f"{folder}/{name}")
    os.makedirs(f"{tree}/bin")
    run(f"{WORK}/bin/cc", "-O2", "-Wall", "-Wextra", "-Werror", "-s", f"{source}/packaging/launcher.c", "-o", f"{tree}/bin/lowkey")
    copy(f"{source}/packaging/levels", f"{tree}/lib/lowkey")
    for name in sorted(os.listdir(f"{source}/include")):
        copy(f"{source}/include/{name}", f"{tree}/include")
    first = levels()[0]
    write(f"{tree}/lib/pkgconfig/lowkey.pc", f"prefix=${{pcfiledir}}/../..\nlibdir=${{prefix}}/lib/lowkey/{first}\n\nName: lowkey\n"
          f"Description: LLM inference whose key-value cache stays compressed\nVersion: {version}\n"
          "Libs: -L${libdir} -Wl,-rpath,${libdir} -llowkey\nCflags: -I${prefix}/include\n")
    copy(f"{out}/lowkey.1", f"{tree}/share/man/man1")
    copy(f"{out}/lowkey.bash", f"{tree}/share/bash-completion/completions", "lowkey")
    copy(f"{source}/scripts/fetch-model", f"{tree}/share/lowkey", mode=0o755)
    with open(f"{source}/packaging/lowkey.service", encoding="utf-8") as file:
        write(f"{tree}/share/lowkey/lowkey.service", file.read())
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        copy(f"{source}/{name}", f"{tree}/share/doc/lowkey")
    for package in LINKED:
        copy(f"/usr/share/doc/{package}/copyright", f"{tree}/share/doc/lowkey/licenses", package)
    [sdist] = [name for name in os.listdir(f"{WORK}/llama-cache/download") if name.endswith(".tar.gz")]
    with tarfile.open(f"{WORK}/llama-cache/download/{sdist}") as archive:
        text = archive.extractfile(sdist.removesuffix(".tar.gz") + "/vendor/llama.cpp/LICENSE").read().decode()
    write(f"{tree}/share/doc/lowkey/licenses/llama.cpp", text)


def check_symbols(path):
    """No symbol of a later glibc, and no other library than glibc."""
    text = run("objdump", "-T", "-p", path, output=True)
    late = [f"{name} of {version}" for version, name in re.findall(r"\(?(GLIBC(?:XX)?_[0-9.]+)\)?\s+(\w+)$", text, re.M)
            if not version.startswith("GLIBC_") or tuple(map(int, version[6:].split(".")[:2])) > GLIBC]
    others = [name for name in re.findall(r"NEEDED\s+(\S+)", text) if not re.match(r"(lib(c|m|dl|pthread|rt)|ld-linux-x86-64)\.so", name)]
    if late or others:
        die(f"{path} needs more than glibc {GLIBC[0]}.{GLIBC[1]}: {', '.join(late + others)}")
