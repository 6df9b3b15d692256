#!/bin/bash -eu
# Build the fuzz targets as OSS-Fuzz wants them, in $OUT: fuzz_NAME, its seeds, dictionary and options.
# OSS-Fuzz sets SRC, WORK, OUT, CC, CXX, CFLAGS, CXXFLAGS and LIB_FUZZING_ENGINE. The sources are in
# $SRC/lowkey, llama.cpp's in $SRC/llama.
set -euo pipefail

source=$SRC/lowkey
build=$WORK/build
# As in releases: ggml's assertions also fail for numbers that are not finite, which are not errors.
export CFLAGS="$CFLAGS -DNDEBUG" CXXFLAGS="$CXXFLAGS -DNDEBUG"

# The image that runs the targets lacks the libraries that were installed in this one. The old form of
# the search path is also used for what these libraries need.
mkdir -p "$OUT/lib"
cmake -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=None -DLOWKEY_FUZZ=ON -DLOWKEY_FUZZ_ENGINE="$LIB_FUZZING_ENGINE" \
  -DLOWKEY_LLAMA_DIR="$SRC/llama" -DGGML_NATIVE=OFF -DLOWKEY_TESTS=OFF -DLOWKEY_EXAMPLES=OFF -DLOWKEY_PROGRAM=OFF \
  -DCMAKE_BUILD_RPATH='$ORIGIN/lib' -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags
cmake --build "$build" -j "${LOWKEY_JOBS:-$(nproc)}"

. "$source/tests/fuzz/limits.sh"
python3 "$source/tests/fuzz/make_seeds.py" "$WORK/seeds"
for target in "$build"/fuzz/fuzz_*; do
  name=$(basename "$target")
  seeds=$WORK/seeds/${name#fuzz_}
  dictionary=$source/tests/fuzz/${name#fuzz_}.dict
  cp "$target" "$OUT/"
  # The C library and the sanitizers' own belong to the image that runs the targets.
  ldd "$target" | awk '$2 == "=>" { print $3 }' | { grep -v -E '/(libc|libm|libdl|libpthread|librt|libresolv)\.so' || true; } |
    xargs -r cp -n -L -t "$OUT/lib"
  [ ! -d "$seeds" ] || (cd "$seeds" && zip -q -r "$OUT/${name}_seed_corpus.zip" .)
  [ ! -f "$dictionary" ] || cp "$dictionary" "$OUT/$name.dict"
  {
    printf '[libfuzzer]\n'
    fuzz_limits "${name#fuzz_}" | sed 's/^-//; s/=/ = /'
    printf '\n[asan]\nallocator_may_return_null = 1\n'
  } >"$OUT/$name.options"
done
