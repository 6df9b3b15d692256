#!/usr/bin/env python3
"""Compile the kernels for real cards and look at the machine code; no card is needed.

usage: compile_check.py SOURCE_FOLDER WORK_FOLDER [all]

The kernels of HOT are compiled for sm_90a, with `all` every lib/cuda/*.cu for sm_90a, sm_80 and sm_120. instructions.txt says which kernels may
use how many registers, whether they may spill, and how many instructions their main loops have. A compilation whose
inputs have not changed since it passed is not repeated: WORK_FOLDER keeps what was found.

Environment: LOWKEY_NVCC, LOWKEY_CUOBJDUMP, LOWKEY_NVDISASM: the tools, if they are not in the path or in
/usr/local/cuda/bin. Status 77 without nvcc, with the reason.
"""
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

ARCHITECTURES = ["90a", "80", "120"]  # the first one always
HOT = ["attend_128.cu"]
CUDA = "/usr/local/cuda/bin"

# Instructions of the ALU pipe, whose rate is half of the issue rate: it limits the main loops.
ALU = {"LOP3", "PRMT", "SHF", "ISETP", "FMNMX", "VIADD", "IADD3", "SEL", "FSEL", "LEA", "I2FP", "F2FP", "PLOP3", "HMNMX2",
       "VHMNMX", "MOV", "FSETP", "IABS", "IMNMX", "VIMNMX", "BMSK"}


def find_tool(name):
    path = os.environ.get("LOWKEY_" + name.upper()) or shutil.which(name) or f"{CUDA}/{name}"
    return path if os.access(path, os.X_OK) else None


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def inputs_hash(top, nvcc):
    """Everything that the machine code follows from."""
    digest = hashlib.sha256(run(nvcc, "--version").stdout.encode())
    files = sorted(sum((glob.glob(f"{top}/lib/{folder}/*.{ext}") for folder in ("cuda", "device", "codec", "base")
                        for ext in ("cu", "cuh", "h")), []))
    for path in files + [os.path.abspath(__file__)]:
        with open(path, "rb") as file:
            digest.update(path.encode() + file.read())
    return digest.hexdigest()


def demangled(names):
    if not names or not shutil.which("c++filt"):
        return dict(zip(names, names))
    return dict(zip(names, run("c++filt", input="\n".join(names)).stdout.split("\n")))


def resources(log):
    """{kernel: (registers, bytes spilled)} of ptxas -v."""
    found, kernel = {}, None
    for line in log.split("\n"):
        match = re.search(r"Compiling entry function '(\w+)'|Function properties for (\w+)", line)
        if match:
            kernel = match.group(1) or match.group(2)
        match = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if match and kernel:
            found.setdefault(kernel, [0, 0])[1] = int(match.group(1)) + int(match.group(2))
        match = re.search(r"Used (\d+) registers", line)
        if match and kernel:
            found.setdefault(kernel, [0, 0])[0] = int(match.group(1))
    return {name: tuple(x) for name, x in found.items() if x[0]}


def shortest_pass(loop):
    """(instructions, of the ALU pipe) of a pass through a loop [(place, name, target or None, always)] that leaves out what can be skipped."""
    best = {loop[0][0]: (0, 0)}
    for i, (place, op, target, always) in enumerate(loop):
        if place not in best:
            continue
        n, alu = best[place][0] + 1, best[place][1] + (op in ALU)
        after = [target] if target and place < target <= loop[-1][0] else []
        if i + 1 < len(loop) and not (op == "BRA" and always):
            after.append(loop[i + 1][0])
        for at in after:
            best[at] = min(best.get(at, (n, alu)), (n, alu))
    n, alu = best.get(loop[-1][0], (len(loop) - 1, sum(x[1] in ALU for x in loop)))  # else the jump back comes from elsewhere
    return n + 1, alu


def main_loops(listing):
    """{kernel: [[instructions, ALU instructions, both of the shortest pass], ...]} of the innermost loops with integer matrix instructions, by size."""
    code, kernel = {}, None
    for line in listing.split("\n"):
        match = re.search(r"Function : (\S+)", line)
        if match:
            kernel = match.group(1)
            code[kernel] = []
        match = re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z0-9_]+)([A-Z0-9_.]*)(.*)", line)
        if match and kernel:
            place, predicate, op, kind, rest = match.groups()
            target = re.search(r"0x([0-9a-f]+)", rest) if op == "BRA" else None
            always = not predicate and not kind and not re.match(r"\s*!?U?P", rest)
            code[kernel].append((int(place, 16), op, int(target.group(1), 16) if target else None, always))
    found = {}
    for name, body in code.items():
        loops = []
        for at, op, first, _ in body:
            if op == "BRA" and first is not None and first < at:
                loop = [x for x in body if first <= x[0] <= at]
                if any(x[1] == "IMMA" for x in loop):
                    loops.append((first, at, [len(loop), sum(x[1] in ALU for x in loop), *shortest_pass(loop)]))
        inner = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
        found[name] = sorted(counts for _, _, counts in inner)
    return found


def compile_one(nvcc, top, source, arch, work):
    """[(kernel, registers, spilled, loops)]; loops None if the tools that read machine code are missing."""
    cubin = f"{work}/{os.path.basename(source)}.sm_{arch}.cubin"
    result = run(nvcc, "-std=c++17", "-O3", "--expt-relaxed-constexpr", f"-gencode=arch=compute_{arch},code=sm_{arch}",
                 "-Xptxas", "-v", f"-I{top}/lib", f"-I{top}/include", '-DLOWKEY_VERSION=""', "-cubin", source, "-o", cubin)
    if result.returncode:
        sys.exit(f"{source} does not compile for sm_{arch}:\n{result.stderr}")
    used = resources(result.stderr)
    loops, dump = None, find_tool("cuobjdump")
    if dump and find_tool("nvdisasm"):
        path = os.pathsep.join([os.path.dirname(find_tool("nvdisasm")), os.environ.get("PATH", "")])
        loops = main_loops(run(dump, "-sass", cubin, env={**os.environ, "PATH": path}).stdout)
    names = demangled(sorted(used))
    return [(names[k], *used[k], loops and loops.get(k)) for k in sorted(used)]


def rules(path):
    """[(pattern, {limit: numbers})]; the first pattern that a kernel's name contains holds."""
    found = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                pattern, limits = line.rsplit("|", 1)
                limits = (limit.split("=") for limit in limits.split())
                found.append((pattern.strip(), {key: [int(x) for x in numbers.split(",")] for key, numbers in limits}))
    return found


def broken(kernel, arch, limits):
    name, registers, spilled, loops = kernel
    values = {"registers": [registers], "spilled": [spilled]}
    if arch == ARCHITECTURES[0] and loops is not None:
        values.update(loops=[x[0] for x in loops], alu=[x[1] for x in loops], path=[x[2] for x in loops], path_alu=[x[3] for x in loops])
    for key, limit in limits.items():
        key, _, only = key.partition("@")
        if only != arch if only else f"{key}@{arch}" in limits:
            continue
        value = values.get(key, limit)
        if len(value) < len(limit) or any(a > b for a, b in zip(value, limit)):
            yield f"sm_{arch}: {name}: {key} {value}, at most {limit}"


def main():
    top, work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    nvcc = find_tool("nvcc")
    if not nvcc:
        print("skipped: nvcc is not installed")
        sys.exit(77)
    os.makedirs(work, exist_ok=True)
    limits = rules(f"{top}/tests/cuda/instructions.txt")
    digest = inputs_hash(top, nvcc)
    count, findings, used = 0, [], set()
    everything = sys.argv[3:] == ["all"]
    sources = sorted(glob.glob(f"{top}/lib/cuda/*.cu")) if everything else [f"{top}/lib/cuda/{name}" for name in HOT]
    for arch in ARCHITECTURES if everything else ARCHITECTURES[:1]:
        for source in sources:
            kept = f"{work}/{os.path.basename(source)}.sm_{arch}.json"
            try:
                with open(kept, encoding="utf-8") as file:
                    old, kernels = json.load(file)
            except (OSError, ValueError):
                old = None
            if old != digest:
                kernels = compile_one(nvcc, top, source, arch, work)
                with open(kept, "w", encoding="utf-8") as file:
                    json.dump([digest, kernels], file)
            for kernel in kernels:
                count += 1
                pattern, limit = next((x for x in limits if x[0] in kernel[0] or x[0] == "*"), (None, {}))
                used.add(pattern)
                findings += broken(kernel, arch, limit)
                loops = "".join(f", loop of {n} instructions, ALU {alu}, shortest pass {p}, ALU {pa}" for n, alu, p, pa in kernel[3] or [])
                print(f"sm_{arch} {kernel[0][:90]}: registers {kernel[1]}, spilled {kernel[2]} bytes{loops}")
    if everything:
        findings += [f"instructions.txt: no kernel is named {p}" for p, _ in limits if p not in used and p != "*"]
    if not find_tool("cuobjdump") or not find_tool("nvdisasm"):
        print("not counted: instructions (cuobjdump and nvdisasm are not installed)")
    print("\n".join(findings))
    print(f"{count} kernels, {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
