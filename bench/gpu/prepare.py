"""What scripts/bench-gpu takes along to a machine with a card, built ahead: at most 60 MB.

    DIR/kernels          bench/gpu/kernels.cpp and lib/cuda for sm_80, sm_90a and sm_120, by nvcc
    DIR/rivals_ggml      ggml-cuda's attention for sm_90 (--rivals)
    DIR/wheels/          FlashAttention 3 and exllamav3's attention (--rivals); rivals_torch.py unpacks them
    DIR/programs.tar.xz  for whole models, if the build has -DLOWKEY_CUDA=ON: lowkey, its module, bench/batch, random_model, and
                         bench/llama_depth as llama.cpp's side, and rivals_ggml. The same code of ggml-cuda in them is stored once,
                         and kernels that no row needs are left out (LEFT_OUT). Weights on a card need libraries that
                         LOWKEY_CUDA=1 LOWKEY_CUDA_ARCHS=90 scripts/deps built

nvcc is $NVCC, or in the path, or in /usr/local/cuda/bin. LOWKEY_JOBS compilers run at once (default 2). LOWKEY_CUDA_ARCH are
other architectures: with 90a alone the program is a third as large.
"""
import concurrent.futures
import glob
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MOST_MB = 60
ARCHITECTURES = os.environ.get("LOWKEY_CUDA_ARCH", "80;90a;120").split(";")
WHEELS = ("fa3-fwd==0.0.3", "exllamav3==1.6.5")
EXLLAMA_PARTS = ("exllamav3/modules/attention_fn/", "exllamav3/util/")  # its attention; the rest compiles an extension
PLATFORMS = ("manylinux_2_24_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64")
NOT_CARRIED = {
    "flashinfer-python 0.7.2.post1": "has sources only and compiles each kernel at first use, which takes minutes; measured if its cache is there",
    "vllm 0.33.0": "its wheel is larger than all that may be carried; its attention on these cards is FlashAttention 3, which is measured",
}
GGML_TYPES = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
# Of ggml-cuda: the backend, attention's choice of a kernel, and the kernels for one to eight query tokens, 64 or 128 channels.
GGML_FILES = ["ggml-cuda", "fattn", "fattn-tile"] + ["template-instances/" + name for name in (
    *(f"fattn-mma-f16-instance-ncols1_{n}" for n in ("1-ncols2_8", "2-ncols2_4", "4-ncols2_2", "8-ncols2_1", "4-ncols2_4", "8-ncols2_4")),
    *(f"fattn-vec-instance-{t}-{t}" for t in ("f16", "q8_0", "q4_0")), "fattn-tile-instance-dkq64-dv64", "fattn-tile-instance-dkq128-dv128")]


def build_dir():
    return os.environ.get("LOWKEY_BUILD_DIR", os.path.join(TOP, "build"))


def find(folder, emulate):
    """Paths of what was built, or None: {"kernels", "ggml"}."""
    kernels = os.path.join(build_dir(), "bench", "gpu_kernels") if emulate else os.path.join(folder, "kernels")
    ggml = [path for path in (os.path.join(folder, "rivals_ggml"), os.path.join(folder, "programs", "rivals_ggml")) if os.path.exists(path)]
    return {"kernels": kernels if os.path.exists(kernels) else None, "ggml": ggml[0] if ggml else None}


def find_nvcc():
    for path in (os.environ.get("NVCC"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if path and os.access(path, os.X_OK):
            return path
    return None


def compile_all(jobs, say):
    """Run commands [(name, command, output)] whose output is missing; the first failure ends all."""
    def one(job):
        name, command, output = job
        if os.path.exists(output):
            return
        begin = time.monotonic()
        result = subprocess.run([*command, "-o", output + ".part"], capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{name}: {result.stderr[-2000:]}")
        os.rename(output + ".part", output)
        say(f"{name}: {time.monotonic() - begin:.0f} s, {os.path.getsize(output) / 1e6:.1f} MB")
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("LOWKEY_JOBS", "2"))) as pool:
        list(pool.map(one, jobs))


# ---- our kernels ----

def build_kernels(nvcc, folder, say):
    """One program with code for all architectures; the codecs come from the library of the build."""
    library = os.path.join(build_dir(), "liblowkey.a")
    if not os.path.exists(library):
        raise RuntimeError(f"{library} is missing: scripts/build")
    work = os.path.join(folder, "objects")
    os.makedirs(work, exist_ok=True)
    sources = [path for path in sorted(glob.glob(os.path.join(TOP, "bench", "gpu", "*.cpp"))) if "rivals" not in path]
    sources += [path for path in sorted(glob.glob(os.path.join(TOP, "lib", "cuda", "*.cu"))) if not os.path.basename(path).startswith("module")]
    flags = ["-std=c++17", "-O3", "--expt-relaxed-constexpr", *("-I" + os.path.join(TOP, part) for part in ("lib", "include", "bench", os.path.join("tests", "support"))),
             *(f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES)]
    jobs, objects = [], []
    for source in sources:
        name = os.path.basename(source)
        objects.append(os.path.join(work, name + ".o"))
        if os.path.exists(objects[-1]) and os.path.getmtime(objects[-1]) < newest(source):
            os.remove(objects[-1])
        jobs.append((name, [nvcc, *flags, "-x", "cu", "-c", source], objects[-1]))
    fold = os.path.join(TOP, "tests", "support", "rope_fold.c")
    objects.append(os.path.join(work, "rope_fold.o"))
    jobs.append(("rope_fold.c", ["cc", "-O2", *(f for f in flags if f.startswith("-I")), "-c", fold], objects[-1]))
    compile_all(jobs, say)
    subprocess.run([nvcc, "-cudart", "static", *objects, library, "-o", os.path.join(folder, "kernels")], check=True)


def newest(source):
    """When a source or any header that it may include was changed."""
    headers = glob.glob(os.path.join(TOP, "lib", "cuda", "*.*h")) + glob.glob(os.path.join(TOP, "lib", "device", "*.h")) + \
        glob.glob(os.path.join(TOP, "bench", "gpu", "*.h"))
    return max(os.path.getmtime(path) for path in [source, *headers])


# ---- rivals ----

def build_ggml(nvcc, folder, say):
    """ggml-cuda with attention alone. Functions of other operations are missing in the program and never called."""
    deps = os.environ.get("LOWKEY_CACHE") or os.path.expanduser("~/.cache/lowkey")
    archives = glob.glob(os.path.join(deps, "download", "llama_cpp_python-*.tar.gz"))
    prefix = subprocess.run([os.path.join(TOP, "scripts", "deps")], capture_output=True, text=True, check=True).stdout.strip()
    if not archives:
        raise RuntimeError("the sources of llama.cpp are missing: scripts/deps")
    work = os.path.join(folder, "objects", "ggml")
    source = os.path.join(work, "source")
    if not os.path.isdir(source):
        with tarfile.open(archives[0]) as archive:
            members = []
            for m in archive.getmembers():
                parts = m.name.split("/")
                if parts[1:4] == ["vendor", "llama.cpp", "ggml"]:
                    m.name = "/".join(parts[4:])
                    if m.name:
                        members.append(m)
            archive.extractall(source + ".part", members)
        os.rename(source + ".part", source)
    flags = ["-std=c++17", "-O3", "-use_fast_math", "-extended-lambda", "-gencode=arch=compute_90a,code=sm_90a", "-DGGML_CUDA_USE_GRAPHS", "-DGGML_USE_CUDA",
             "-DGGML_CUDA_PEER_MAX_BATCH_SIZE=128", "-DGGML_SCHED_MAX_COPIES=4", "-DGGML_CUDA_NO_VMM", "-DNDEBUG",
             "-I" + os.path.join(source, "include"), "-I" + os.path.join(source, "src"), "-I" + os.path.join(source, "src", "ggml-cuda")]
    pairs = [(k, v) for k in GGML_TYPES for v in GGML_TYPES]
    flags += [f"-DGGML_CUDA_FA_{k}_{v}={int(k == v and k in ('F16', 'Q8_0', 'Q4_0'))}" for k, v in pairs]
    jobs, objects = [], []
    archive = cuda_archive()
    if archive:  # the same code as in the programs
        objects = [os.path.basename(name) + ".cu.o" for name in GGML_FILES]
        subprocess.run(["ar", "x", archive, *objects], cwd=work, check=True)
        objects = [os.path.join(work, name) for name in objects]
    for name in GGML_FILES if not archive else ():
        objects.append(os.path.join(work, os.path.basename(name) + ".o"))
        jobs.append((name, [nvcc, *flags, "-c", os.path.join(source, "src", "ggml-cuda", name + ".cu")], objects[-1]))
    ours = os.path.join(TOP, "bench", "gpu", "rivals_ggml.cpp")
    objects.append(os.path.join(work, "rivals_ggml.o"))
    jobs.append(("rivals_ggml", [nvcc, *flags, "-c", ours], objects[-1]))
    compile_all(jobs, say)
    base = glob.glob(os.path.join(prefix, "lib*", "libggml-base.a"))
    link = [nvcc, "-cudart", "static", *objects, *base, "-lpthread", "-Xlinker", "--gc-sections"]
    program, stubs = os.path.join(folder, "rivals_ggml"), os.path.join(work, "stubs.s")
    subprocess.run([*link, "-Xlinker", "--unresolved-symbols=ignore-all", "-o", program], check=True)
    missing = sorted(name for name in symbols_of(program, "-u") if "@" not in name)
    write_stubs(stubs, missing)
    subprocess.run([*link, stubs, "-o", program], check=True)
    say(f"rivals_ggml: {len(missing)} functions of other operations left out")


def symbols_of(path, kind):
    """Names of external functions and data that objects have (--defined-only) or use (-u)."""
    found = subprocess.run(["nm", "-g", kind, path], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in found.splitlines() if line and not line.endswith(":")}


def write_stubs(path, names):
    """Assembler source of functions that end the program."""
    with open(path, "w", encoding="utf-8") as file:
        for name in names:
            file.write(f".globl {name}\n{name}: ud2\n")


def fetch_wheels(folder, say):
    wheels = os.path.join(folder, "wheels")
    for wheel in WHEELS:
        name = wheel.split("==", maxsplit=1)[0].replace("-", "_")
        if glob.glob(os.path.join(wheels, name + "-*.whl")):
            continue
        into = os.path.join(folder, "objects", "wheels")
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--python-version", "3.12",
                   "--implementation", "cp", *(word for p in PLATFORMS for word in ("--platform", p)), "-d", into, wheel]
        if subprocess.run(command, check=False).returncode:
            say(f"{wheel} cannot be downloaded; its rows will be skipped")
            continue
        os.makedirs(wheels, exist_ok=True)
        archive = glob.glob(os.path.join(into, name + "*.whl"))[0]
        with zipfile.ZipFile(archive) as source, zipfile.ZipFile(os.path.join(wheels, os.path.basename(archive)), "w", zipfile.ZIP_DEFLATED) as kept:
            for entry in source.namelist():
                if name != "exllamav3" or entry.startswith(EXLLAMA_PARTS):
                    kept.writestr(entry, source.read(entry))
    for name, why in NOT_CARRIED.items():
        say(f"not carried: {name}: {why}")


# ---- whole models ----

PROGRAMS = ("lowkey", "liblowkey-cuda.so", os.path.join("bench", "batch"), os.path.join("bench", "random_model"), os.path.join("bench", "llama_depth"))
LIKELY_SAME = 1 << 28  # bytes that the compression looks back: over a program
# Files of ggml-cuda for types of weights, sizes of heads and operations that no row has: weights are q4_K, q6_K, q8_0, f16 or f32,
# heads have 64 or 128 channels.
LEFT_OUT = re.compile(r"mmq-instance-(?!q4_k\.|q6_k\.|q8_0\.)|fattn-tile-instance-dkq(?!64-|128-)|fattn-vec-instance-bf16|^(conv(?!ert)|lightning|ssm-|"
                      r"solve_tri|gated_delta|wkv|dsv4|im2col|col2im|cross-entropy|upscale|gla|snake|opt-step|pool)")


def link_command(name):
    """The command that links a program of the build, for a shell in its folder; "" without ninja."""
    if not os.path.exists(os.path.join(build_dir(), "build.ninja")):
        return ""
    found = subprocess.run(["ninja", "-C", build_dir(), "-t", "commands", name], capture_output=True, text=True, check=False).stdout
    return found.rstrip().split("\n")[-1]


def cuda_archive():
    """ggml's CUDA backend as lowkey is linked with it, or None."""
    found = re.search(r"\S*/libggml-cuda\.a", link_command("lowkey"))
    return found[0] if found else None


def shorten(archive, work):
    """A copy of ggml-cuda without LEFT_OUT; a call of what is missing ends the program."""
    short, stubs = os.path.join(work, "libggml-cuda.a"), os.path.join(work, "left_out.s")
    shutil.copy(archive, short)
    members = subprocess.run(["ar", "t", archive], capture_output=True, text=True, check=True).stdout.split()
    subprocess.run(["ar", "d", short, *filter(LEFT_OUT.search, members)], check=True)
    had, has = symbols_of(archive, "--defined-only"), symbols_of(short, "--defined-only")
    write_stubs(stubs, sorted((had - has) & symbols_of(short, "-u")))
    subprocess.run(["cc", "-c", stubs, "-o", stubs + ".o"], check=True)
    subprocess.run(["ar", "q", short, stubs + ".o"], check=True)
    return short


def link_short(name, archive, short, out):
    """Link a program of the build with the short archive."""
    command = re.sub(r" -o \S+ ", f" -o {out} ", link_command(name), count=1).replace(archive, short)
    subprocess.run(command, shell=True, cwd=build_dir(), check=True)


def pack_programs(folder, say):
    """Strip the programs and pack them. Without the module there are none: whole models could not run on a card."""
    found = [path for path in (os.path.join(build_dir(), name) for name in PROGRAMS) if os.path.exists(path)]
    if not any(path.endswith(".so") for path in found):
        say("no programs for whole models: the build has no liblowkey-cuda.so (-DLOWKEY_CUDA=ON)")
        return
    rivals, archive = os.path.join(folder, "rivals_ggml"), cuda_archive()
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": LIKELY_SAME}]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        short = shorten(archive, work) if archive else None
        with lzma.open(os.path.join(work, "packed"), "wb", filters=filters) as file, tarfile.open(fileobj=file, mode="w") as packed:
            for path in found + ([rivals] if short and os.path.exists(rivals) else []):
                stripped, name = os.path.join(work, os.path.basename(path)), os.path.relpath(path, build_dir())
                if short and archive in link_command(name):
                    link_short(name, archive, short, stripped)
                    path = stripped
                subprocess.run(["strip", "-o", stripped, path], check=True)
                packed.add(stripped, os.path.join("programs", os.path.basename(path)))
        os.replace(os.path.join(work, "packed"), os.path.join(folder, "programs.tar.xz"))
    if short and os.path.exists(rivals):
        os.remove(rivals)  # it is packed


def unpack_programs(folder):
    """Before a run; nothing if it has been done."""
    packed = os.path.join(folder, "programs.tar.xz")
    if os.path.exists(packed) and not os.path.isdir(os.path.join(folder, "programs")):
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")


def collect(folder, rivals, say):
    """Build and collect; 0 if everything was built."""
    folder = os.path.abspath(folder)
    os.makedirs(folder, exist_ok=True)
    nvcc = find_nvcc()
    if not nvcc:
        say("nvcc is not installed; nothing can be built for a card")
        return 77
    status = 0
    for name, build in (("kernels", lambda: build_kernels(nvcc, folder, say)), ("ggml-cuda", lambda: build_ggml(nvcc, folder, say) if rivals else None),
                        ("wheels", lambda: fetch_wheels(folder, say) if rivals else None), ("programs", lambda: pack_programs(folder, say))):
        try:
            build()
        except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
            say(f"{name} was not built: {error}")
            status = 1
    sizes = {name: size_of(os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if name not in ("objects", "logs", "programs", "models")}
    for name, size in sizes.items():
        say(f"{name}: {size / 1e6:.1f} MB")
    total = sum(sizes.values()) / 1e6
    say(f"together {total:.1f} MB, at most {MOST_MB} may be carried" + (" (packed: tar --zstd)" if total > MOST_MB else ""))
    return status


def size_of(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(base, name)) for base, _, names in os.walk(path) for name in names)
