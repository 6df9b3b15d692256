/* A table of other programs' options. An option that a command has itself is never looked up. */
#include "foreign_options.h"

#include "lowkey.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct foreign_option {
    const char *names; /* separated by spaces */
    const char *advice;
};

static const char cache_type_advice[] = "--kv RECIPE sets K and V together";

static const struct foreign_option table[] = {
    {"-ctk --cache-type-k -ctv --cache-type-v --kv-cache-dtype", cache_type_advice},
    {"-ngl --gpu-layers --n-gpu-layers -dev --device -sm --split-mode -ts --tensor-split -mg "
     "--main-gpu -nkvo --no-kv-offload -kvo --kv-offload -ot --override-tensor -cmoe --cpu-moe "
     "-ncmoe --n-cpu-moe --no-op-offload --rpc --gpu-memory-utilization --tensor-parallel-size",
     "leave it out; --device NAME and --layers N put layers on a device, where a command has them "
     "('lowkey info' names the devices)"},
    {"-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url",
     "download the GGUF file, then give it with -m FILE"},
    {"--ctx-size --max-model-len --num-ctx", "use -c N"},
    {"--n-predict --predict --max-tokens --max-new-tokens --num-predict", "use -n N"},
    {"--n-threads -tb --threads-batch", "use -t N, for prefill and decoding"},
    {"-fa --flash-attn", "attention is always computed in tiles; leave it out"},
    {"-ub --ubatch-size -b --batch-size",
     "lowkey chooses the batch itself; leave it out (--stream saves memory during prefill)"},
    {"-cnv --conversation -i --interactive -if --interactive-first -mli --multiline-input",
     "use 'lowkey chat'"},
    {"-st --single-turn", "use 'lowkey run --chat'"},
    {"-no-cnv --no-conversation",
     "'lowkey run' continues a text without a chat template; leave it out"},
    {"-sys --system-prompt", "use --system TEXT ('run' needs --chat too)"},
    {"-sysf --system-prompt-file", "use --system \"$(cat FILE)\" ('run' needs --chat too)"},
    {"--jinja --no-jinja --chat-template --chat-template-file --chat-template-kwargs",
     "the chat template comes from the model file; 'lowkey serve' has --chat-template-file, and "
     "requests have chat_template_kwargs"},
    {"--in-prefix --in-suffix --in-prefix-bos -r --reverse-prompt",
     "'lowkey chat' takes turns by the model's chat template; leave it out"},
    {"--prompt-cache --prompt-cache-all --prompt-cache-ro", "use 'lowkey run --session FILE'"},
    {"--slot-save-path", "use 'lowkey serve --session-dir DIR'"},
    {"--host --port --path --api-key-file -to --timeout --threads-http --metrics --slots",
     "only 'lowkey serve' has a network; see 'lowkey help serve'"},
    {"--api-key", "put the key into a file: 'lowkey serve --api-key-file FILE'"},
    {"-a --alias --served-model-name", "use 'lowkey serve --name NAME'"},
    {"--models-dir", "use 'lowkey serve --models FOLDER'"},
    {"--models-max --models-autoload --no-models-autoload --models-preset --sleep-idle-seconds",
     "'lowkey serve --models FOLDER --max-memory MIB' unloads models when there is no room"},
    {"-np --parallel -ns --sequences", "use 'lowkey serve --parallel N'"},
    {"-cb --cont-batching -nocb --no-cont-batching",
     "'lowkey serve' always batches the answers that run; leave it out"},
    {"--temperature", "use --temp T"},
    {"--repetition-penalty --penalize-repeat", "use --repeat-penalty X"},
    {"-s", "use --seed N"},
    {"--frequency-penalty --presence-penalty --typical --typical-p --mirostat --mirostat-lr "
     "--mirostat-ent --dynatemp-range --dynatemp-exp --xtc-probability --xtc-threshold "
     "--dry-multiplier --dry-base --dry-allowed-length --top-nsigma --samplers "
     "--sampling-seq --sampler-seq -l --logit-bias",
     "the command line has --temp, --top-k, --top-p, --min-p and --repeat-penalty; requests to "
     "'lowkey serve' have more"},
    {"--grammar", "put the grammar into a file: --grammar-file FILE"},
    {"-j --json-schema -jf --json-schema-file",
     "use 'lowkey serve' and the request's response_format, or --grammar-file FILE"},
    {"-bf --binary-file", "use -f FILE"},
    {"-e --escape --no-escape", "the prompt is taken as it is; the shell has $'line\\n'"},
    {"--no-display-prompt --display-prompt -dp --verbose-prompt",
     "'lowkey run' does not repeat the prompt; leave it out"},
    {"--mlock --direct-io -dio", "lowkey does not lock or bypass file pages; leave it out"},
    {"--numa --prio --poll -C --cpu-mask -Cr --cpu-range --cpu-strict",
     "use taskset or numactl, and -t N"},
    {"-nr --no-repack", "lowkey always repacks weights; leave it out"},
    {"--context-shift --keep",
     "a chat leaves out its oldest turns when the context is full; for endless text use --kv "
     "streaming"},
    {"--no-context-shift", "nothing shifts here; leave it out"},
    {"-kvu --kv-unified --swa-full -dt --defrag-thold --cache-reuse --ctx-checkpoints "
     "--no-warmup --warmup -v --verbose --log-verbose -lv --log-verbosity --log-disable "
     "--log-file --log-colors --simple-io -co --color --no-perf --perf --offline "
     "--trust-remote-code --no-host --fit -fit",
     "there is nothing to set here; leave it out"},
    {"--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
     "--yarn-ext-factor --override-kv",
     "lowkey computes with the values in the model file; leave it out"},
    {"-md --model-draft --spec-draft-model --speculative-model",
     "lowkey has no draft models; use --draft lookup"},
    {"--spec-type", "use --draft lookup"},
    {"--draft-max --draft-min --draft-n --draft-n-min --draft-p-min --draft-p-split -td "
     "--threads-draft -cd --ctx-size-draft -ngld --gpu-layers-draft --spec-draft-n-max",
     "lowkey drafts as many tokens as pay; leave it out"},
    {"--lora-scaled", "use --lora FILE and --lora-scale X"},
    {"--lora", "run, chat and serve have it, but not this command"},
    {"--control-vector -mm --mmproj --image --audio -mv --model-vocoder",
     "lowkey has no control vectors and no images"},
    {"--kl-divergence --kl-divergence-base --save-all-logits --perplexity",
     "'lowkey perplexity' always compares with the full cache; leave it out"},
    {"--hellaswag --winogrande --multiple-choice", "use lm-eval (docs/python.md)"},
    {"--ppl-stride", "see 'lowkey help eval'"},
    {"-pg --n-prompt --n-gen --n-depth --progress -o --output-err",
     "use -p N, -n N and -d N, with --json"},
};

/* True if the space-separated list contains name[0..len). */
static bool list_contains(const char *list, const char *name, size_t len) {
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, " ");
        if (n == len && strncmp(at, name, len) == 0) return true;
        at += n + strspn(at + n, " ");
    }
    return false;
}

/* What --kv takes in place of a cache type. */
static void write_cache_type_advice(const char *type, char *out, size_t cap) {
    lk_recipe *recipe = NULL;
    lk_err err = {0};
    if (!type || *type == '-')
        snprintf(out, cap, "%s", cache_type_advice);
    else if (lk_recipe_parse(&recipe, type, &err))
        snprintf(out, cap, "%s; %s", cache_type_advice, err.msg);
    else
        snprintf(out, cap, "%s: --kv %.40s", cache_type_advice, type);
    lk_recipe_free(recipe);
}

const char *foreign_option_advice(const char *arg, const char *value, char *out, size_t cap) {
    size_t len = strcspn(arg, "=");
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (!list_contains(table[i].names, arg, len)) continue;
        if (table[i].advice == cache_type_advice)
            write_cache_type_advice(arg[len] ? arg + len + 1 : value, out, cap);
        else
            snprintf(out, cap, "%s", table[i].advice);
        return out;
    }
    return NULL;
}
