"""Makes the folder of a target that zig compiles for: compilers, and the C libraries that lowkey links, from pinned sources.

usage: python3 packaging/zig_root.py TARGET FOLDER      TARGET: windows-x86_64 or macos-aarch64

scripts/cross calls it. The exit status is 77 if pip cannot install zig. FOLDER/bin has the compilers clang and clang++, and ar,
ranlib, rc and windres; FOLDER/lib, FOLDER/include and FOLDER/pkgconfig the libraries jansson, libmicrohttpd and cmocka and the
header of xxhash. zig is the package ziglang, which has the headers of both systems, and libc++; it is kept in $LOWKEY_CACHE.
"""
import os
import shutil
import subprocess
import sys

import build

CACHE = os.path.dirname(build.WORK)
# The wheel for x86-64 Linux.
ZIG = ("ziglang", "0.17.1", "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54")
# Debian's sources, as in build.py. cmocka is for the tests.
CMOCKA = ("cmocka", "1.1.5-2.1", "cmocka_1.1.5.orig.tar.xz", "f0ccd8242d55e2fd74b16ba518359151f6f8383ff8aef4976e48393f77bba8b6")
TARGETS = {"windows-x86_64": ("x86_64-windows-gnu", "x86_64-w64-mingw32"), "macos-aarch64": ("aarch64-macos", "aarch64-apple-darwin")}
JANSSON_CONFIG = {"json_inline": "inline", "json_have_long_long": "1", "json_have_localeconv": "1", "json_have_atomic_builtins": "1",
                  "json_have_sync_builtins": "1"}
# What zig's headers have on both systems, of what the libraries ask for.
JANSSON_HAS = ["STDINT_H", "FCNTL_H", "SYS_TYPES_H", "SYS_TIME_H", "SCHED_H", "GETPID", "GETTIMEOFDAY", "OPEN", "CLOSE", "READ",
               "SCHED_YIELD", "LOCALECONV", "ATOMIC_BUILTINS", "UNISTD_H"]
CMOCKA_HAS = ["ASSERT_H", "INTTYPES_H", "SETJMP_H", "SIGNAL_H", "STDARG_H", "STDDEF_H", "STDINT_H", "STDIO_H", "STDLIB_H",
              "STRINGS_H", "STRING_H", "SYS_STAT_H", "SYS_TYPES_H", "TIME_H", "UNISTD_H", "STRUCT_TIMESPEC", "CALLOC", "EXIT",
              "FPRINTF", "SNPRINTF", "VSNPRINTF", "FREE", "LONGJMP", "SETJMP", "MALLOC", "MEMCPY", "MEMSET", "PRINTF", "SIGNAL",
              "STRCMP", "STRCPY", "STRSIGNAL", "CLOCK_GETTIME_REALTIME"]


def zig():
    """The program zig, installed for this purpose if it is missing."""
    folder = f"{CACHE}/zig-{ZIG[1]}"
    python = f"{folder}/bin/python3"
    if not os.path.exists(f"{folder}/done"):
        build.say(f"installing {ZIG[0]} {ZIG[1]} in {folder}")
        build.run(sys.executable, "-m", "venv", folder)
        build.write(f"{folder}/requirements", f"{ZIG[0]}=={ZIG[1]} --hash=sha256:{ZIG[2]}\n")
        try:
            build.run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:", "--require-hashes",
                      "-r", f"{folder}/requirements")
        except SystemExit as failure:
            build.say(f"zig is missing: {failure}")
            sys.exit(77)
        build.write(f"{folder}/done", "")
    return subprocess.run([python, "-c", "import ziglang, os; print(os.path.dirname(ziglang.__file__) + '/zig')"], check=True,
                          text=True, stdout=subprocess.PIPE).stdout.strip()


def make_tools(root, triple):
    program = zig()
    for name, command in {"clang": f"cc -target {triple} -fno-sanitize=undefined", "clang++": f"c++ -target {triple} -fno-sanitize=undefined",
                          "ar": "ar", "ranlib": "ranlib", "rc": "rc"}.items():
        build.write_new(f"{root}/bin/{name}", f'#!/bin/sh\nexec {program} {command} "$@"\n', 0o755)
    # For libmicrohttpd, whose resources only a DLL needs: an empty object. The file is the argument after -o.
    build.write_new(f"{root}/bin/windres", '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n'
                    f'exec {root}/bin/clang -c -x c /dev/null -o "$2"\n', 0o755)


def archive(root, name, folder, options):
    """Compile the C files of a folder to a static library."""
    files = sorted(file for file in os.listdir(folder) if file.endswith(".c"))
    for file in files:  # one at a time: zig would link them to one object
        build.run(f"{root}/bin/clang", "-O2", *options, f"-I{root}/include", "-c", file, "-o", file[:-1] + "o", cwd=folder)
    build.run(f"{root}/bin/ar", "crs", f"{root}/lib/lib{name}.a", *(file[:-1] + "o" for file in files), cwd=folder)


def make_jansson(root, windows):
    source = build.unpack_source(build.MACHINES[0], build.JANSSON)
    with open(f"{source}/src/jansson_config.h.in", encoding="utf-8") as file:
        text = file.read()
    for key, value in JANSSON_CONFIG.items():
        text = text.replace(f"@{key}@", value)
    build.write(f"{root}/include/jansson_config.h", text)
    build.copy(f"{source}/src/jansson.h", f"{root}/include")
    build.write(f"{source}/src/jansson_private_config.h", "")
    random = "-DUSE_WINDOWS_CRYPTOAPI" if windows else "-DUSE_URANDOM"
    archive(root, "jansson", f"{source}/src", [*(f"-DHAVE_{name}" for name in JANSSON_HAS), random, "-DINITIAL_HASHTABLE_ORDER=3"])


def make_cmocka(root, windows):
    source = build.unpack_source(build.MACHINES[0], CMOCKA)
    has = CMOCKA_HAS if not windows else [name for name in CMOCKA_HAS if name not in ("STRSIGNAL", "CLOCK_GETTIME_REALTIME")] + ["IO_H"]
    lines = [f"#define HAVE_{name} 1\n" for name in has]
    build.write(f"{source}/src/config.h", "".join(lines) + "#define HAVE_GCC_THREAD_LOCAL_STORAGE 1\n#define WORDS_SIZEOF_VOID_P 8\n")
    for name in ("cmocka.h", "cmocka_pbc.h"):
        build.copy(f"{source}/include/{name}", f"{root}/include")
    archive(root, "cmocka", f"{source}/src", ["-DHAVE_CONFIG_H", "-I.", "-I../include", "-w"])


def make_microhttpd(root, host):
    source = build.unpack_source(build.MACHINES[0], build.MICROHTTPD)
    build.run("./configure", "-q", f"--host={host}", "--disable-https", "--disable-shared", "--disable-doc", "--disable-examples",
              "--disable-curl", "--disable-nls", "--disable-dependency-tracking", cwd=source,
              env={"CC": f"{root}/bin/clang", "AR": f"{root}/bin/ar", "RANLIB": f"{root}/bin/ranlib", "RC": f"{root}/bin/windres",
                   "CFLAGS": "-O2"})
    build.run("make", "-C", f"{source}/src/microhttpd", f"-j{build.JOBS}", "libmicrohttpd.la")
    build.copy(f"{source}/src/microhttpd/.libs/libmicrohttpd.a", f"{root}/lib")
    build.copy(f"{source}/src/include/microhttpd.h", f"{root}/include")


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in TARGETS:
        sys.exit(__doc__)
    target, root = sys.argv[1], os.path.realpath(sys.argv[2])
    triple, host = TARGETS[target]
    windows = "windows" in target
    build.WORK = f"{CACHE}/cross/{target}-sources"
    os.makedirs(build.WORK, exist_ok=True)
    make_tools(root, triple)
    os.makedirs(f"{root}/lib", exist_ok=True)
    if not os.path.exists("/usr/include/xxhash.h"):
        build.die("xxhash.h is missing; install libxxhash-dev")
    build.copy("/usr/include/xxhash.h", f"{root}/include")
    make_jansson(root, windows)
    make_cmocka(root, windows)
    make_microhttpd(root, host)
    for name, libs in {"jansson": "-ljansson" + (" -ladvapi32" if windows else ""), "cmocka": "-lcmocka",
                       "libmicrohttpd": "-lmicrohttpd" + (" -lws2_32" if windows else "")}.items():
        build.write(f"{root}/pkgconfig/{name}.pc", f"Name: {name}\nDescription: static\nVersion: 1\nCflags: -I{root}/include\n"
                    f"Libs: -L{root}/lib {libs}\n")
    shutil.rmtree(build.WORK)
    build.write(f"{root}/done", "")


if __name__ == "__main__":
    main()
