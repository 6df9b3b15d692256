# Sourced by scripts/test and oss-fuzz/build.sh.

# Limits of one input: seconds, MiB of a single allocation, MiB of the process, bytes of the input. An input
# that is small but costs more is a finding, like a crash.
fuzz_limits() {
  local seconds=10 malloc=64 resident=1000 len=8192
  case $1 in
    gguf) malloc=300 resident=2000 len=32768 ;; # the ledgers' limit is 256 MiB
    sidecar) malloc=80 len=16384 ;;             # 64 MiB
    session) malloc=300 resident=2000 ;;
    tokens) seconds=5 ;;
  esac
  printf '%s\n' "-timeout=$seconds" "-malloc_limit_mb=$malloc" "-rss_limit_mb=$resident" "-max_len=$len"
}
