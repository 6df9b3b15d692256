/* lowkey: LLM inference whose key-value cache stays compressed. The table of commands, which are in
 * cmd_*.c, and the start of the program. */
#include "args.h"
#include "base/closest.h"
#include "base/os.h"
#include "cmd.h"
#include "interrupt.h"
#include "lowkey_lab.h"
#include "output.h"
#include "ranks.h"
#include "shell_completion.h"
#include "terminate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char lk_commit[]; /* cmake/version.cmake writes it */

/* In the order of help. */
static const struct command commands[] = {
    {.name = "chat",
     .summary = "Chat with a model in the terminal.",
     .operands = "",
     .operand_hint = "messages are typed, or piped in; a model is given with -m",
     .description =
         "Answers messages that are typed or piped in. Without -m, a small model is used; the "
         "first "
         "time, chat asks whether to download it. Lines that start with a slash are commands; "
         "/help lists them. Ctrl-C stops an answer, and leaves if pressed twice at the prompt. See "
         "docs/chat.md.",
     .examples = "  lowkey chat\n"
                 "  lowkey chat --session trip.lk\n"
                 "  lowkey chat -m model.gguf --kv best-3 --system \"Answer in one sentence.\"\n"
                 "  echo \"What is a cache?\" | lowkey chat --greedy\n",
     .on_ranks = true,
     .run = cmd_chat},

    {.name = "run",
     .summary = "Continue a prompt.",
     .operands = "",
     .operand_hint = "a prompt is given with -p, a model with -m",
     .description = "Continues the prompt of -p, of -f or of standard input. A newline at the end "
                    "of a file or of standard input is removed.",
     .examples = "  lowkey run -p \"The capital of France is\" -n 20\n"
                 "  lowkey run --kv best-3 --stats -f book.txt -n 200\n"
                 "  echo \"Name three rivers.\" | lowkey run --chat --greedy\n"
                 "  lowkey run --kv \"sink 4: f16; body: rot3; window 128: f16\" -p Hello\n",
     .on_ranks = true,
     .run = cmd_run},

    {.name = "serve",
     .summary = "Serve models over HTTP: OpenAI-compatible API and a chat page.",
     .operands = "",
     .operand_hint = "a model is given with -m",
     .description = "Serves one model, or several that are loaded when requests name them, until "
                    "Ctrl-C or SIGTERM. The chat page is at /. Messages never become control "
                    "tokens. See docs/serving.md.",
     .examples = "  lowkey serve\n"
                 "  lowkey serve -m model.gguf --kv best-3 -c 32k --cache-limit 2048\n"
                 "  lowkey serve --models folder --max-memory 16384\n"
                 "  lowkey serve --host 0.0.0.0 --api-key-file keys.txt --allow-kv presets\n",
     .on_ranks = true,
     .run = cmd_serve},

    {.name = "models",
     .summary = "List the model files on this machine.",
     .operands = "",
     .description =
         "Looks in the folders of lowkey, Hugging Face, LM Studio, llama.cpp and ollama, "
         "and says which files run. -m of every command takes a name of this list, or a "
         "part of it that no other name has. The folders are only read.",
     .examples = "  lowkey models\n"
                 "  lowkey chat -m llama3.2:1b\n"
                 "  lowkey models --json\n",
     .run = cmd_models},

    {.name = "pull",
     .summary = "Download one of a few small models.",
     .operands = "[NAME]",
     .description = "Downloads a model to ~/.cache/lowkey/models, checks it, and prints its path. "
                    "Without a name, lists the models, their sizes and licenses. -m takes the same "
                    "name afterwards, or the path of any other GGUF file.",
     .examples = "  lowkey pull\n"
                 "  lowkey pull smollm2\n"
                 "  lowkey chat -m smollm2\n",
     .run = cmd_pull},

    {.name = "info",
     .summary = "Show properties of a model and of this machine.",
     .operands = "",
     .operand_hint = "a model is given with -m",
     .description = "Shows the shape and the sizes of a model, the recipes tuned for it, which "
                    "attention kernels are used, and which CPU features faster ones would need.",
     .examples = "  lowkey info -m model.gguf\n"
                 "  lowkey info --json\n",
     .run = cmd_info},

    {.name = "recipes",
     .summary = "List the presets, or check recipes and show their levels.",
     .operands = "[RECIPE...]",
     .complete = "RECIPE",
     .description = "Without operands, lists the presets and explains recipes. Otherwise checks "
                    "the given recipes and shows their levels. See docs/recipes.md.",
     .examples = "  lowkey recipes\n"
                 "  lowkey recipes best-3 \"body: k=kivi4 v=kivi2; residual 128: f16\"\n"
                 "  lowkey recipes my.recipe\n"
                 "  lowkey recipes --combinations\n",
     .run = cmd_recipes},

    {.name = "plan",
     .summary = "Compute the memory that contexts need, without running.",
     .operands = "",
     .operand_hint = "a recipe is given with --kv",
     .description = "For each recipe and context length, prints the bytes of the cache, of an f16 "
                    "cache, of the weights and of scratch memory, and their peak during prefill. A "
                    "memory-mapped model file is not counted.",
     .examples = "  lowkey plan -c 4k,32k\n"
                 "  lowkey plan --kv f16 --kv best-3 -c 131072\n"
                 "  lowkey plan --kv best-2 --fit 4096\n",
     .run = cmd_plan},

    {.name = "bench",
     .summary = "Measure the speed of prefill and decode at given depths.",
     .operands = "",
     .operand_hint = "a recipe is given with --kv",
     .description =
         "For each recipe and depth, measures the tokens per second of prefill and of decode with "
         "that many tokens in the cache. Prints the median and the best of the repetitions. Large "
         "depths are not computed: beyond 512 tokens, the cache is filled with repeated keys and "
         "values of a short text. This takes no time and attention costs the same, but the "
         "predictions mean nothing. The cache is held twice.",
     .examples = "  lowkey bench\n"
                 "  lowkey bench --kv f16 --kv best-3 --depth 0,8k,32k\n"
                 "  lowkey bench --kv best-4 --depth 128k -p 0 -n 16 --repeat 5 --json\n",
     .on_ranks = true,
     .run = cmd_bench},

    {.name = "perplexity",
     .summary = "Compare recipes with the full cache on a text.",
     .operands = "",
     .operand_hint = "a text is given with -f",
     .description =
         "Evaluates a text in chunks with a full f16 cache and with each recipe, and scores the "
         "predictions in the second half of each chunk. Prints the perplexity, the "
         "Kullback-Leibler divergence KL(full cache || recipe) in nats, how often the most "
         "probable token is the same, and the size of the cache. If the sidecar has adapters, the "
         "full cache is that of the model without them.",
     .examples = "  lowkey perplexity -f book.txt --kv best-4 --kv best-2 --weights f32\n"
                 "  lowkey perplexity -f book.txt -c 2k --chunks 2 --kv kivi-2 --json\n",
     .on_ranks = true,
     .run = cmd_perplexity},

    {.name = "inspect",
     .summary = "Show a cache by layer and level: size, errors and attention.",
     .operands = "",
     .operand_hint = "a text is given with -f",
     .description =
         "Evaluates a text with the recipe's cache and with a full f16 cache; the last 32 tokens "
         "are decoded one by one. Prints by level and by layer the size, the normalized squared "
         "error of K and V, the share of the last tokens' attention, and the Hellinger distance "
         "(0 to 1) of that attention from the full cache's.",
     .examples = "  lowkey inspect --kv best-3 -f book.txt\n"
                 "  lowkey inspect --kv best-3 -f book.txt -c 4k --json >cache.json\n"
                 "  lowkey inspect -m model.gguf --kv kivi-2 --layers\n",
     .run = cmd_inspect},

    {.name = "eval",
     .summary = "Evaluate recipes and llama.cpp's cache types on tasks.",
     .operands = "TASK...",
     .description =
         "Runs the tasks with each recipe, with the full f16 cache, and with llama.cpp's own "
         "caches if requested. Prints a table for each task: bits per value, bytes per token, and "
         "the task's metrics with standard errors. See docs/evaluation.md.",
     .examples = "  lowkey eval text --text book.txt --kv best-4 --kv llama.cpp:q8_0\n"
                 "  lowkey eval ruler --kv best-3 --quick -o results.jsonl\n",
     .run = cmd_eval},

    {.name = "tune",
     .summary = "Find a recipe for a model: bits of each layer, side and age.",
     .operands = "",
     .operand_hint = "a text is given with --text",
     .description =
         "Estimates how much the keys and values of each KV head lose, and finds the bits of each "
         "layer, head, side and age that lose least in a given size. Without a size, recipes of "
         "the "
         "sizes of best-4, best-3 and best-2 are stored, which run, chat and serve use for the "
         "model from then on (--kv auto, auto-3, auto-2). An interrupted run continues when the "
         "same command is given again. See docs/tuning.md.",
     .examples = "  lowkey tune -m model.gguf\n"
                 "  lowkey tune --text book.txt --like best-3 --weights f32 -o my.recipe\n"
                 "  lowkey tune --text book.txt --bits 3.2 -c 8k -o small.recipe\n"
                 "  lowkey tune --text book.txt --max-kl 0.005 -o close.recipe\n"
                 "  lowkey run --kv my.recipe -p Hello\n",
     .run = cmd_tune},

    {.name = "compress",
     .summary = "Compute low-rank bases of a model's keys and values: a sidecar.",
     .operands = "",
     .operand_hint = "a text is given with --text",
     .description =
         "Evaluates a text, finds the directions in which the keys and values of each layer vary "
         "most, and writes them to a sidecar: a file for one model, which recipes with latents "
         "need. While the text is evaluated, statistics are kept in OUTPUT.stats, so an "
         "interrupted run continues when the same command is given again. See docs/latents.md.",
     .examples = "  lowkey compress --method palu --text book.txt -o model.lk.gguf\n"
                 "  lowkey compress --method tale --text book.txt --rank 50% -o m.lk.gguf\n"
                 "  lowkey compress --method oscar --text book.txt --type f32 -o m.lk.gguf\n"
                 "  lowkey compress --method kvheads --text self --tokens 16k -o m.lk.gguf\n",
     .run = cmd_compress},

    {.name = "train",
     .summary = "Train LESS networks or LoRA adapters that recover what a cache loses.",
     .operands = "less|lora",
     .complete = "less lora",
     .description =
         "'less' trains the networks of LESS, layer by layer, to recover what a policy evicts. A "
         "line for each layer shows the loss on the validation sequences: 1 is the policy alone, 0 "
         "the full cache. 'lora' trains low-rank adapters of the attention weights, so that the "
         "model with the cache of --kv predicts like the model with a full one. Both write a "
         "sidecar. An interrupted run continues when the same command is given again. See "
         "docs/training.md.",
     .examples = "  lowkey train less -f book.txt --budget 256 -o less.gguf\n"
                 "  lowkey train less -f 1.txt -f 2.txt --budget 82 --hidden 64 -o less.gguf\n"
                 "  lowkey train lora -f book.txt --sidecar m.lk.gguf \\\n"
                 "      --kv \"all: k=latent v=latent\" -o recovered.lk.gguf\n",
     .run = cmd_train},

    {.name = "export",
     .summary = "Merge a sidecar into a model and write a plain GGUF file.",
     .operands = "",
     .operand_hint = "the files are given with --sidecar and -o",
     .description =
         "Writes a model that needs no sidecar and runs in llama.cpp and other programs. Adapters "
         "of 'lowkey train lora' are added to the attention weights. Bases of 'lowkey compress "
         "--method kvheads' are multiplied into them if the model has no RoPE; the result has "
         "fewer KV heads. Sidecars with other contents are refused, unless --adapters-only leaves "
         "those out.",
     .examples = "  lowkey export -m model.gguf --sidecar recovered.lk.gguf -o recovered.gguf\n"
                 "  lowkey export -m m.gguf --sidecar r.lk.gguf --adapters-only -o r.gguf\n"
                 "  lowkey export -m bloom.gguf --sidecar heads.lk.gguf --type f32 -o fewer.gguf\n",
     .run = cmd_export},
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

/* NULL if there is no such command. */
static const struct command *find_command(const char *name) {
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

/* Print that the command does not exist, and which one was probably meant. */
static int print_unknown_command(const char *name) {
    static const struct {
        const char *theirs, *ours;
    } other[] = {{"cli", "chat"},        {"generate", "run"},   {"completion", "run"},
                 {"server", "serve"},    {"ppl", "perplexity"}, {"benchmark", "bench"},
                 {"show", "info"},       {"memory", "plan"},    {"evaluate", "eval"},
                 {"presets", "recipes"}, {"download", "pull"},  {"list", "models"},
                 {"ls", "models"}};
    struct lk_closest close = {.word = name, .len = strlen(name)};
    const char *meant = NULL;
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        if (strcmp(name, other[i].theirs) == 0) meant = other[i].ours;
    for (size_t i = 0; i < N_COMMANDS; i++) lk_closest_offer(&close, commands[i].name);
    if (!meant) meant = close.name;
    if (!meant) return print_error("unknown command '%s'; 'lowkey help' lists them", name);
    return print_error("unknown command '%s': did you mean 'lowkey %s'? 'lowkey help' lists them",
                       name, meant);
}

/* lowkey help [COMMAND]. Hidden: help --completion bash, for the build. */
static int cmd_help(int argc, char **argv) {
    if (argc < 3) {
        print_overview(commands, N_COMMANDS);
        return STATUS_OK;
    }
    if (strcmp(argv[2], "--completion") == 0) {
        if (argc != 4 || strcmp(argv[3], "bash") != 0)
            return print_error("help --completion: expected 'bash'");
        print_bash_completion(commands, N_COMMANDS);
        return STATUS_OK;
    }
    const struct command *command = find_command(argv[2]);
    if (!command) return print_unknown_command(argv[2]);
    if (argc > 3)
        return print_error("'lowkey help' explains one command; '%s' is another operand", argv[3]);
    char option[] = "--help";
    char *command_argv[] = {argv[2], option, NULL};
    return command->run(command, 2, command_argv);
}

/* The first line has the version only, for scripts. packaging/launcher.c sets LOWKEY_CPU. */
static void print_version(void) {
    lk_device_info device;
    const char *level = getenv("LOWKEY_CPU");
    printf("lowkey %s\n", lk_version());
    printf("commit %s, built by %s as %s\n", lk_commit, LOWKEY_COMPILER, LOWKEY_BUILD_TYPE);
    if (level && *level) printf("for CPUs of level %s (LOWKEY_CPU)\n", level);
    for (size_t i = 0; lk_device_list(i, &device); i++)
        printf("device %s: %s\n", device.name, device.text);
}

int main(int argc, char **argv) {
    report_uncaught_exceptions();
    report_lost_pages();
    lk_os_use_utf8();
    catch_interrupts();
    report_failed_writes();
    const char *name = argc > 1 ? argv[1] : "help";
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return flush_output(cmd_help(argc, argv));
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        print_version();
        return flush_output(STATUS_OK);
    }
    const struct command *command = find_command(name);
    if (!command && name[0] == '-')
        return print_error("unknown option '%s'; expected a command first: see 'lowkey help'",
                           name);
    if (!command) return print_unknown_command(name);
    lk_err err = {0};
    if (lk_baselines_register(&err)) return print_error("%s", err.msg);
    struct ranks *ranks;
    int status = ranks_join(&ranks);
    if (!status) status = ranks_run(ranks, command, argc - 1, argv + 1);
    return flush_output(status);
}
