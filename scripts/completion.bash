# Bash completion of lowkey: verbs, options, presets, files.

_lowkey_presets() {
  lowkey recipes --json 2>/dev/null | sed -n 's/^ \{6\}"name": "\([a-z0-9-]*\)",$/\1/p'
}

# Names of files that end like $2, and of directories, that begin with $1.
_lowkey_files() {
  local file
  COMPREPLY=()
  while IFS= read -r file; do
    COMPREPLY+=("$file")
  done < <(compgen -d -- "$1"; compgen -f -X "!*$2" -- "$1")
  compopt -o filenames
}

_lowkey() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]-}
  local verbs='run chat serve plan perplexity bench eval train recipes inspect report compress info help'
  COMPREPLY=()
  if [ "$COMP_CWORD" = 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$verbs --help --version" -- "$current")
    return
  fi
  case $previous in
    -m | --model | --sidecar | --from) _lowkey_files "$current" .gguf; return ;;
    -f | --file | --text | -o | --output | --export) _lowkey_files "$current" ''; return ;;
    --bench) _lowkey_files "$current" .json; return ;;
    --method) mapfile -t COMPREPLY < <(compgen -W 'palu tale kvheads' -- "$current"); return ;;
    --svd) mapfile -t COMPREPLY < <(compgen -W 'whitened output plain mean-pool' -- "$current"); return ;;
    --rank-search) mapfile -t COMPREPLY < <(compgen -W 'uniform energy fisher fisher-uniform' -- "$current"); return ;;
    --svg) _lowkey_files "$current" .svg; return ;;
    --grammar-file) _lowkey_files "$current" .gbnf; return ;;
    --data | --session-dir) mapfile -t COMPREPLY < <(compgen -d -- "$current"); return ;;
    --weights) mapfile -t COMPREPLY < <(compgen -W 'shipped f32' -- "$current"); return ;;
    --kernels) mapfile -t COMPREPLY < <(compgen -W 'reference avx2 avxvnni avx512 avx512vbmi amx neon' -- "$current"); return ;;
    -k | --kv | --allow-kv)
      mapfile -t COMPREPLY < <(compgen -W "$(_lowkey_presets)" -- "$current")
      [ ${#COMPREPLY[@]} -gt 0 ] || _lowkey_files "$current" ''
      return
      ;;
    -p | --prompt | --system | -n | --tokens | -c | --ctx | -t | --threads | --fit | --chunks | --max-memory | -d | --depth | --prefill | -r | --repeat | --limit | --shots | --step | --layers | --rank | --group | --quantum | --skip | --fisher-tokens | --fisher-ctx) return ;;
    --parallel | --queue | --cache-limit | --host | --port | --allow-origin | --connections | --max-body | --queue-time | --time-limit | --slice | --store-limit) return ;;
    --api-key-file) _lowkey_files "$current" ''; return ;;
    --temp | --top-k | --top-p | --min-p | --repeat-penalty | --repeat-last-n | --seed) return ;;
  esac

  local model='-m --model -t --threads --weights --kernels --sidecar --no-mmap'
  local session='-k --kv -c --ctx --stream --max-memory'
  local sampling='--temp --greedy --top-k --top-p --min-p --repeat-penalty --repeat-last-n --seed --ignore-eos --grammar-file'
  local options
  case $verb in
    run) options="-p --prompt -f --file --chat --system -n --tokens $model $session $sampling --session --stats --json" ;;
    chat) options="--system -n --tokens $model $session $sampling --json" ;;
    serve) options="$model -k --kv --allow-kv -c --ctx -n --tokens --parallel --queue --cache-limit --session-dir --store-limit --host --port --api-key-file --allow-origin --connections --max-body --queue-time --time-limit --slice --name --log" ;;
    plan) options="-k --kv -c --ctx --fit --stream $model --json" ;;
    perplexity) options="-f --file -k --kv -c --ctx --chunks --step $model --json" ;;
    bench) options="-k --kv -d --depth -p --prefill -n --tokens -r --repeat -f --file $model --json --csv" ;;
    eval)
      options="-k --kv --text --data --limit --seed -c --ctx --shots --quick -o --output $model --json"
      if [[ $current != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(lowkey help eval | sed -n '/^Tasks/,$s/^  \([a-z0-9_]*\) .*/\1/p')" -- "$current")
        return
      fi
      ;;
    train)
      options="-f --file -o --output --from --markup --layers --policy --budget -c --ctx --sequences --features --hidden --share --plain --epochs --queries --rate --dropout --valid --seed $model"
      if [ "$COMP_CWORD" = 2 ] && [[ $current != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W less -- "$current")
        return
      fi
      ;;
    inspect) options="-f --file -k --kv -c --ctx --layers --svg $model --json" ;;
    report)
      options='-o --output --bench'
      if [ "$previous" = -o ] || [ "$previous" = --output ]; then
        _lowkey_files "$current" .html
        return
      elif [[ $current != -* ]]; then
        _lowkey_files "$current" .jsonl
        return
      fi
      ;;
    compress) options="--method --text -o --output --rank --rank-search --group --svd --quantum --mean --truncate --tokens -c --ctx --skip --seed --keep --fisher-tokens --fisher-ctx --palu-code --export $model --json" ;;
    info) options="$model --json" ;;
    recipes)
      options=--json
      if [[ $current != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_lowkey_presets)" -- "$current")
        return
      fi
      ;;
    help)
      mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$current")
      return
      ;;
    *) return ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$options --help" -- "$current")
}

complete -F _lowkey lowkey
