"""Compiles the commit for packages of one machine: a prefix with one program and library for each level of its table.

scripts/package says how. Everything is in $LOWKEY_CACHE/package; output of commands goes to package.log there.
"""
import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Machine:
    """A kind of processor. glibc: Debian 11's libc6 and libc6-dev, and image_libc: (suite, name, version, SHA-256 of the
    file). level_table: a file of packaging/."""
    name: str
    debian: str
    level_table: str
    glibc: tuple
    image_libc: tuple

    @property
    def triple(self):
        return f"{self.name}-linux-gnu"

    @property
    def work(self):
        return f"{WORK}/{self.name}"

    @property
    def cross(self):
        return self.name != os.uname().machine

    @property
    def root(self):
        """Where Debian's static libraries are: this system, or a folder with the packages of the other machine."""
        return f"{self.work}/debian" if self.cross else ""

    def tool(self, name):
        return f"{self.triple}-{name}" if self.cross else name

    def levels(self):
        with open(f"{TOP}/packaging/{self.level_table}", encoding="utf-8") as file:
            return [line.split()[0] for line in file if not line.startswith("#")]


MACHINES = [
    Machine("x86_64", "amd64", "levels", (
        ("bullseye", "libc6", "2.31-13+deb11u11", "05f7264da867b37f4c5ce49266b558ea1e81e05a9464f623152fca70f3550282"),
        ("bullseye", "libc6-dev", "2.31-13+deb11u11", "e7f7b45d9c5cfcf37609f0b6efd3c645272c812144703af89dfd32218fcb0fd3")),
        ("bookworm", "libc6", "2.36-9+deb12u14", "ba4f88f73dbc3ae9055f3c20f4523bfdbaf1ad13ff95e258924f77d20b4fbedf")),
    Machine("aarch64", "arm64", "levels-aarch64", (
        ("bullseye", "libc6", "2.31-13+deb11u11", "baaa9aa184e2f21738c5819055e6740cc5b22f198e3f416e33f82b40ff6933d8"),
        ("bullseye", "libc6-dev", "2.31-13+deb11u11", "28d478134722dcd4b0bd2045a199301d18713bf95947b9fce66634e7aeacab2e")),
        ("bookworm", "libc6", "2.36-9+deb12u14", "01f4330719fd4f65580e16ea5a0527f372fca750e8f588d26deaf09f2d3b1cf4")),
]

# Sources of Debian: (name, version, file, SHA-256 of the file). libmicrohttpd.a of Debian needs GnuTLS; libjansson.a is not
# compiled for shared libraries.
JANSSON = ("jansson", "2.14-2", "jansson_2.14.orig.tar.gz",
           "c739578bf6b764aa0752db9a2fdadcfe921c78f1228c7ec0bb47fa804c55d17b")
MICROHTTPD = ("libmicrohttpd", "0.9.75-6", "libmicrohttpd_0.9.75.orig.tar.xz",
              "796e7e217a4802679fcac667a4e98501c53185dcf50ca0583870e84192620131")

# Packages whose static libraries are linked in. Their licenses are part of each package.
LINKED = ["libjansson-dev", "libedit-dev", "libncurses-dev", "libbsd-dev", "libmd-dev", "liblapacke-dev", "liblapack-dev",
          "libblas-dev", "libgfortran-12-dev", "libstdc++-12-dev", "libgcc-12-dev", "libmicrohttpd-dev", "libxxhash-dev", "libjs-marked"]
GCC_LIBS = ["stdc++", "gcc_eh", "gfortran"]  # and quadmath, which only x86-64 has
LIBS = ["libedit", "libtinfo", "libbsd", "libmd", "liblapacke", "lapack/liblapack", "blas/libblas"]
HEADERS = ["jansson.h", "jansson_config.h", "histedit.h", "editline", "xxhash.h", "lapack.h", "lapacke.h", "lapacke_config.h",
           "lapacke_mangling.h", "lapacke_utils.h", "{}/cblas-netlib.h", "{}/cblas_mangling.h", "{}/cblas_f77.h"]
JANSSON_HAS = ["STDINT_H", "UNISTD_H", "FCNTL_H", "SYS_TYPES_H", "SYS_TIME_H", "SCHED_H", "ENDIAN_H", "GETPID",
               "GETTIMEOFDAY", "OPEN", "CLOSE", "READ", "SCHED_YIELD", "LOCALECONV", "ATOMIC_BUILTINS"]
# What pkg-config says about them, instead of the system's files.
PKG_CONFIG = {"jansson": "-ljansson", "libedit": "-ledit -ltinfo -lbsd -lmd", "libmicrohttpd": "-lmicrohttpd",
              "lapacke": "-llapacke -llapack -lblas -lgfortran{}", "openblas": ""}
# Flags of the user's own builds. With a base directory ccache writes relative paths, which -ffile-prefix-map does not know.
NOT_OF_USER = {"CFLAGS": "", "CXXFLAGS": "", "CPPFLAGS": "", "LDFLAGS": "", "CCACHE_BASEDIR": ""}
# Functions that glibc 2.29 gave a new version; packaging/glibc.c calls the old one.
WRAPPED = ["exp", "exp2", "log", "log2", "pow"]


def die(text):
    sys.exit(f"package: {text}")


def say(text):
    print(f"package: {text}", file=sys.stderr, flush=True)


def run(*command, output=False, **options):
    """Run a command. Its output goes to package.log, or is returned."""
    environment = {**os.environ, **NOT_OF_USER, **options.pop("env", {})}
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
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    write(path, text, mode)


def copy(source, folder, name=None, mode=0o644):
    os.makedirs(folder, exist_ok=True)
    if os.path.isdir(source):
        shutil.copytree(source, f"{folder}/{os.path.basename(source)}", dirs_exist_ok=True)
        return
    target = f"{folder}/{name or os.path.basename(source)}"
    shutil.copyfile(source, target)
    os.chmod(target, mode)


# ---- what Debian has ----


def apt(*arguments, architecture, cwd=WORK):
    """Run apt-get for the pinned suites and an architecture, without touching the system's lists."""
    folder = f"{WORK}/apt-{architecture}"
    if not os.path.exists(f"{folder}/done"):
        for name in ("lists/partial", "cache/archives/partial"):
            os.makedirs(f"{folder}/{name}", exist_ok=True)
        mirror = mirror_of_system()
        source = f"[signed-by={KEYRING}] {mirror}"
        write(f"{folder}/sources.list", "".join(f"deb {source} {suite} main\n" for suite in SUITES[:2])
              + f"deb-src {source} bookworm main\n")
        write(f"{folder}/status", "")
        write(f"{folder}/apt.conf", f'Dir::State "{folder}";\nDir::State::status "{folder}/status";\nDir::Cache "{folder}/cache";\n'
              f'Dir::Etc::sourcelist "{folder}/sources.list";\nDir::Etc::sourceparts "/dev/null";\nAPT::Sandbox::User "root";\n'
              f'APT::Architecture "{architecture}";\nAPT::Architectures "{architecture}";\nAPT::Install-Recommends "false";\n'
              'APT::Default-Release "bookworm";\nDebug::NoLocking "true";\n')
        run("apt-get", "update", env={"APT_CONFIG": f"{folder}/apt.conf"})
        write(f"{folder}/done", "")
    run("apt-get", *arguments, cwd=cwd, env={"APT_CONFIG": f"{folder}/apt.conf"})


def mirror_of_system():
    uris = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian", output=True).split()
    if not uris:
        die("apt has no sources of Debian, from which the pinned packages could come")
    return uris[0]


def download(name, sha256, *command, architecture):
    folder = f"{WORK}/download"
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/{name}"
    if not os.path.exists(path):
        apt(*command, architecture=architecture, cwd=folder)
    if not os.path.exists(path) or digest(path) != sha256:
        die(f"{path} is not the file that scripts/package pins (SHA-256 {sha256})")
    return path


def unpack_deb(machine, pin, folder):
    _, name, version, sha256 = pin
    file = download(f"{name}_{version}_{machine.debian}.deb", sha256, "download", f"{name}={version}", architecture=machine.debian)
    run("dpkg-deb", "-x", file, folder)


def make_root(machine):
    """The packages of Debian 12 for another machine, and what they depend on, unpacked and not installed."""
    if not machine.cross or os.path.exists(f"{machine.root}/done"):
        return
    say(f"unpacking Debian's libraries for {machine.debian}")
    root, archives = fresh(machine.root), f"{WORK}/apt-{machine.debian}/cache/archives"
    apt("--yes", "--download-only", "install", *LINKED, architecture=machine.debian)
    for name in sorted(os.listdir(archives)):
        if name.endswith(".deb"):
            run("dpkg-deb", "-x", f"{archives}/{name}", root)
    write(f"{root}/done", "")


def make_sysroot(machine):
    """glibc of Debian 11, with the kernel's and gcc's headers of Debian 12; and compilers that use it."""
    root = fresh(f"{machine.work}/sysroot")
    for pin in machine.glibc:
        unpack_deb(machine, pin, root)
    for folder, _, names in os.walk(root):
        for path in (f"{folder}/{name}" for name in names):
            if os.path.islink(path) and os.readlink(path).startswith("/"):
                target = root + os.readlink(path)
                os.remove(path)
                os.symlink(target, path)
    triple = machine.triple
    for name in ("linux", "asm-generic", f"{triple}/asm", "c++/12", f"{triple}/c++/12"):
        path = f"{root}/usr/include/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.lexists(path):
            os.symlink(f"{machine.root}/usr/include/{name}", path)
    for name, compiler in (("cc", "gcc-12"), ("c++", "g++-12")):
        folders = []
        if machine.cross:  # a cross compiler has a glibc of its own, outside of --sysroot
            folders = [f"{root}/usr/include/{path}" for path in ("c++/12", f"{triple}/c++/12", "c++/12/backward") if name == "c++"]
            folders += [f"/usr/lib/gcc-cross/{triple}/12/include", f"{root}/usr/include/{triple}", f"{root}/usr/include"]
        write_new(f"{machine.work}/bin/{name}", f'#!/bin/sh\nexec {machine.tool(compiler)} --sysroot={root} -B{root}/usr/lib/{triple} '
                  + "".join(f"-nostdinc -isystem {path} " for path in folders) + f'-ffile-prefix-map={WORK}=. "$@"\n', 0o755)


def unpack_source(machine, pin):
    name, version, file, sha256 = pin
    folder = fresh(f"{machine.work}/{name}")
    path = download(file, sha256, "source", "--download-only", f"{name}={version}", architecture=machine.debian)
    run("tar", "-xf", path, "-C", folder, "--strip-components=1")
    return folder


def make_static(machine):
    """Static libraries, their headers, and pkg-config files that name only them."""
    static, gcc = fresh(f"{machine.work}/static"), f"{machine.root}/usr/lib/gcc/{machine.triple}/12"
    quadmath = ["quadmath"] if machine.name == "x86_64" else []
    for path in [f"{gcc}/lib{name}.a" for name in GCC_LIBS + quadmath] + [f"{machine.root}/usr/lib/{machine.triple}/{name}.a" for name in LIBS]:
        if not os.path.exists(path):
            die(f"{path} is missing; install {' '.join(LINKED)}")
        copy(path, f"{static}/lib")
    for path in HEADERS:
        copy(f"{machine.root}/usr/include/{path.format(machine.triple)}", f"{static}/include")
    os.rename(f"{static}/include/cblas-netlib.h", f"{static}/include/cblas.h")
    for name, libs in PKG_CONFIG.items():
        libs = libs.format("".join(f" -l{name}" for name in quadmath))
        write(f"{static}/pc/{name}.pc", f"Name: {name}\nDescription: static\nVersion: 1\nCflags: -I{static}/include\n"
              f"Libs: -L{static}/lib {libs}\n")
    compiler = f"{machine.work}/bin/cc"
    run(compiler, "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-c", f"{TOP}/packaging/glibc.c", "-o", f"{static}/glibc.o")
    source = unpack_source(machine, JANSSON)
    files = sorted(name for name in os.listdir(f"{source}/src") if name.endswith(".c"))
    write(f"{source}/src/jansson_private_config.h", "")
    run(compiler, "-O2", "-fPIC", *(f"-DHAVE_{name}" for name in JANSSON_HAS), "-DUSE_URANDOM", "-DINITIAL_HASHTABLE_ORDER=3",
        f"-I{static}/include", "-c", *files, cwd=f"{source}/src")
    run(machine.tool("ar"), "crsD", f"{static}/lib/libjansson.a", *(name[:-1] + "o" for name in files), cwd=f"{source}/src")
    source = unpack_source(machine, MICROHTTPD)
    run("./configure", "-q", *([f"--host={machine.triple}"] if machine.cross else []), "--disable-https", "--disable-shared",
        "--disable-doc", "--disable-examples", "--disable-curl", "--disable-nls", "--disable-dependency-tracking",
        cwd=source, env={"CC": compiler, "CFLAGS": "-O2 -fPIC"})
    run("make", "-C", f"{source}/src/microhttpd", f"-j{JOBS}", "libmicrohttpd.la")
    copy(f"{source}/src/microhttpd/.libs/libmicrohttpd.a", f"{static}/lib")
    copy(f"{source}/src/include/microhttpd.h", f"{static}/include")


# ---- building ----


def build(machine, version, docs):
    """Compile the commit once, and link it with ggml for each level. Fill machine.work/tree as a prefix. docs: the folder
    with what the program writes about itself, filled if this system can run the program."""
    source, static, out = f"{WORK}/source", f"{machine.work}/static", f"{machine.work}/build"
    tree, levels = fresh(f"{machine.work}/tree"), machine.levels()
    compilers = {"CC": f"{machine.work}/bin/cc", "CXX": f"{machine.work}/bin/c++"}
    say(f"building llama.cpp for the levels of {machine.name}")
    prefix = run("scripts/deps", output=True, cwd=source, env={
        **compilers, "LOWKEY_LEVELS": "1", "LOWKEY_CROSS": f"linux-{machine.name}" if machine.cross else "",
        "LOWKEY_CACHE": f"{WORK}/llama-cache", "LOWKEY_JOBS": JOBS}).strip()
    llama = f"{machine.work}/llama"
    shutil.rmtree(llama, ignore_errors=True)
    shutil.copytree(prefix, llama)
    link = f"{static}/glibc.o -lm -L{static}/lib -static-libgcc " + " ".join(f"-Wl,--wrap={name}" for name in WRAPPED)
    say(f"building lowkey for {machine.name}")
    fresh(out)
    system = ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={machine.name}"] if machine.cross else []
    run("cmake", "-S", source, "-B", out, "-G", "Unix Makefiles", *system, "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_INSTALL_PREFIX=/usr",
        "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG",
        "-DLOWKEY_TESTS=OFF", "-DLOWKEY_EXAMPLES=OFF", f"-DCMAKE_PREFIX_PATH={llama}", f"-DLK_XXHASH_INCLUDE={static}/include",
        f"-DCMAKE_EXE_LINKER_FLAGS={link}", f"-DCMAKE_SHARED_LINKER_FLAGS={link}", "-DCMAKE_SKIP_RPATH=ON",
        env={**compilers, "PKG_CONFIG_LIBDIR": f"{static}/pc"})
    for level in levels:
        shutil.copyfile(f"{llama}/lib/{level}/libggml-cpu.a", f"{llama}/lib/libggml-cpu.a")
        targets = ["lowkey_program", "lowkey"]
        if level == levels[0] and not machine.cross:  # the documentation is written by running the program
            targets.append("lowkey_docs")
        run("cmake", "--build", out, "-j", JOBS, "--target", *targets)
        folder = f"{tree}/lib/lowkey/{level}"
        library = os.path.realpath(f"{out}/liblowkey.so")
        soname = ".".join(os.path.basename(library).split(".")[:4])
        copy(f"{out}/lowkey", folder, mode=0o755)
        copy(library, folder, soname)
        os.symlink(soname, f"{folder}/liblowkey.so")
        for name in ("lowkey", soname):
            run(machine.tool("strip"), f"{folder}/{name}")
            check_symbols(machine, f"{folder}/{name}")
    os.makedirs(f"{tree}/bin")
    run(f"{machine.work}/bin/cc", "-O2", "-Wall", "-Wextra", "-Werror", "-s", f"{source}/packaging/launcher.c", "-o", f"{tree}/bin/lowkey")
    copy(f"{source}/packaging/{machine.level_table}", f"{tree}/lib/lowkey", "levels")
    for name in sorted(os.listdir(f"{source}/include")):
        copy(f"{source}/include/{name}", f"{tree}/include")
    write(f"{tree}/lib/pkgconfig/lowkey.pc", f"prefix=${{pcfiledir}}/../..\nlibdir=${{prefix}}/lib/lowkey/{levels[0]}\n\nName: lowkey\n"
          f"Description: LLM inference whose key-value cache stays compressed\nVersion: {version}\n"
          "Libs: -L${libdir} -Wl,-rpath,${libdir} -llowkey\nCflags: -I${prefix}/include\n")
    for name in ("lowkey.1", "lowkey.bash"):
        if not machine.cross:
            copy(f"{out}/{name}", docs)
    copy(f"{docs}/lowkey.1", f"{tree}/share/man/man1")
    copy(f"{docs}/lowkey.bash", f"{tree}/share/bash-completion/completions", "lowkey")
    copy(f"{source}/scripts/fetch-model", f"{tree}/share/lowkey", mode=0o755)
    with open(f"{source}/packaging/lowkey.service", encoding="utf-8") as file:
        write(f"{tree}/share/lowkey/lowkey.service", file.read())
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        copy(f"{source}/{name}", f"{tree}/share/doc/lowkey")
    for package in LINKED:
        copy(f"{machine.root}/usr/share/doc/{package}/copyright", f"{tree}/share/doc/lowkey/licenses", package)
    with open(f"{source}/scripts/deps", encoding="utf-8") as file:
        sdist = "llama_cpp_python-" + re.search(r"^version=(\S+)", file.read(), re.M).group(1)
    with tarfile.open(f"{WORK}/llama-cache/download/{sdist}.tar.gz") as archive:
        text = archive.extractfile(f"{sdist}/vendor/llama.cpp/LICENSE").read().decode()
    write(f"{tree}/share/doc/lowkey/licenses/llama.cpp", text)


def check_symbols(machine, path):
    """No symbol of a later glibc, and no other library than glibc."""
    text = run(machine.tool("objdump"), "-T", "-p", path, output=True)
    late = [f"{name} of {version}" for version, name in re.findall(r"\(?(GLIBC(?:XX)?_[0-9.]+)\)?\s+(\w+)$", text, re.M)
            if not version.startswith("GLIBC_") or tuple(map(int, version[6:].split(".")[:2])) > GLIBC]
    others = [name for name in re.findall(r"NEEDED\s+(\S+)", text) if not re.match(r"(lib(c|m|dl|pthread|rt)|ld-linux-(x86-64|aarch64))\.so", name)]
    if late or others:
        die(f"{path} needs more than glibc {GLIBC[0]}.{GLIBC[1]}: {', '.join(late + others)}")
