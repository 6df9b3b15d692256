/* What each command is, for --help, the man page and the shell completion. */
#include "command_table.h"

#include "commands.h"

#include <stdio.h>
#include <string.h>

const struct command command_table[N_COMMANDS] = {
    {.name = "run",
     .summary = "Continue a prompt.",
     .operands = "",
     .operand_hint = "a prompt is given with -p",
     .description =
         "Continues a prompt, which comes from `-p`, from `-f` or from standard input. One newline "
         "at the end of a file or of standard input is removed. Text that spells a control token "
         "such as `<|im_end|>` is plain text, unless `--parse-special` is given.",
     .examples = "  lowkey run -p \"The capital of France is\" -n 20\n"
                 "  lowkey run --kv best-3 --stats -f book.txt -n 200\n"
                 "  echo \"Name three rivers.\" | lowkey run --chat --greedy\n"
                 "  lowkey run --kv \"sink 4: f16; body: rot3; window 128: f16\" -p Hello\n",
     .on_ranks = true,
     .run = cmd_run},

    {.name = "chat",
     .summary = "Chat with a model in the terminal.",
     .operands = "",
     .operand_hint = "messages are typed, or piped in",
     .description =
         "Reads messages and answers them. Without a model, the default model is used; it is "
         "downloaded the first time.\n\n"
         "A pasted text is one message. A text between `\"\"\"` and `\"\"\"` and a line that ends "
         "with a backslash may have several lines. What is typed or pasted while an answer runs "
         "appears at the next prompt.\n\n"
         "Lines that start with a slash are commands, which `/help` lists: `/file` gives a text "
         "file to the model, `/regen` answers again, `/save` and `/load` keep conversations. "
         "Ctrl-C stops an answer; at the prompt it drops the line, and pressed twice it leaves the "
         "program. `docs/chat.md` describes all of this.",
     .examples = "  lowkey chat\n"
                 "  lowkey chat --session trip.lk\n"
                 "  lowkey chat -m model.gguf --kv best-3 --system \"Answer in one sentence.\"\n"
                 "  echo \"What is a cache?\" | lowkey chat --greedy\n",
     .on_ranks = true,
     .run = cmd_chat},

    {.name = "serve",
     .summary = "Serve a model over HTTP: OpenAI-compatible API and a chat page.",
     .operands = "",
     .description =
         "Serves OpenAI-compatible requests, and a chat page at the root, until Ctrl-C or SIGTERM. "
         "Contents of messages never become control tokens. `docs/serving.md` describes requests, "
         "control tokens, memory, limits and access control.",
     .examples = "  lowkey serve\n"
                 "  lowkey serve -m model.gguf --kv best-3 -c 32k --cache-limit 2048\n"
                 "  lowkey serve --host 0.0.0.0 --api-key-file keys.txt --allow-kv presets\n",
     .on_ranks = true,
     .run = cmd_serve},

    {.name = "plan",
     .summary = "Compute the memory that contexts need, without running.",
     .operands = "",
     .operand_hint = "a recipe is given with --kv",
     .description =
         "For each recipe and context length, prints the bytes of the cache, of an f16 cache, of "
         "the weights and of scratch memory, and their peak during prefill. A memory-mapped model "
         "file is not counted.",
     .examples = "  lowkey plan -c 4k,32k\n"
                 "  lowkey plan --kv f16 --kv best-3 -c 131072\n"
                 "  lowkey plan --kv best-2 --fit 4096\n",
     .run = cmd_plan},

    {.name = "perplexity",
     .summary = "Compare recipes with the full cache on a text.",
     .operands = "",
     .operand_hint = "a text is given with -f",
     .description =
         "Evaluates a text in chunks with a full f16 cache and with each recipe, and scores the "
         "predictions in the second half of each chunk. Prints the perplexity, the "
         "Kullback-Leibler divergence KL(full cache || recipe) in nats (mean, 99% and 99.9% "
         "quantile), how often the most probable token is the same, and the size of the cache. If "
         "the sidecar has adapters, the full cache is that of the model without them.",
     .examples = "  lowkey perplexity -f book.txt --kv best-4 --kv best-2 --weights f32\n"
                 "  lowkey perplexity -f book.txt -c 2k --chunks 2 --kv kivi-2 --json\n",
     .on_ranks = true,
     .run = cmd_perplexity},

    {.name = "bench",
     .summary = "Measure the speed of prefill and decode at given depths.",
     .operands = "",
     .operand_hint = "a recipe is given with --kv",
     .description =
         "For each recipe and depth, measures the tokens per second of prefill and of decode with "
         "`depth` tokens in the cache, and counts the bytes of the cache. Prints the median of the "
         "repetitions and the best one.\n\n"
         "Large depths are not computed. After 512 tokens, the keys and values of a text of up to "
         "2048 tokens are put into the cache repeatedly; there they age like any others. "
         "Attention to them costs the same as ever, but the predicted tokens are meaningless. "
         "Therefore depths beyond the trained context length are possible, unless the model has "
         "learned positions. The cache is held twice, so that each repetition can return to the "
         "depth.",
     .examples = "  lowkey bench\n"
                 "  lowkey bench --kv f16 --kv best-3 --depth 0,8k,32k\n"
                 "  lowkey bench --kv best-4 --depth 128k -p 0 -n 16 --repeat 5 --json\n",
     .on_ranks = true,
     .run = cmd_bench},

    {.name = "eval",
     .summary = "Evaluate recipes and llama.cpp's cache types on tasks.",
     .operands = "TASK...",
     .description =
         "Runs the tasks with each recipe, with the full f16 cache, and with llama.cpp's own "
         "caches if requested. Prints a table for each task: bits per value, bytes per token, and "
         "the task's metrics with standard errors. `docs/evaluation.md` explains the metrics.",
     .examples = "  lowkey eval text --text book.txt --kv best-4 --kv llama.cpp:q8_0\n"
                 "  lowkey eval choice --data DIR --kv best-3 --quick -o results.jsonl\n",
     .run = cmd_eval},

    {.name = "train",
     .summary = "Train networks or adapters that recover what a lossy cache loses.",
     .operands = "less|lora",
     .complete = "less lora",
     .description =
         "`less` trains the networks of LESS and writes them to a sidecar. The model evaluates "
         "sequences of the texts once with a full cache. Then every layer learns on its own what a "
         "sparse policy loses. For each layer, a line shows the loss on the validation sequences: "
         "1 is the policy alone, 0 is the full cache.\n\n"
         "`lora` trains low-rank adapters of the weights around the cache, so that the model with "
         "the lossy cache of `--kv` predicts like the model with a full one. Wherever the sidecar "
         "is given, they are merged into the weights. `docs/training.md` describes the method and "
         "what it costs.\n\n"
         "An interrupted run continues when the same command is given again, and produces the same "
         "file.",
     .examples = "  lowkey train less -f book.txt --budget 256 -o less.gguf\n"
                 "  lowkey train less -f 1.txt -f 2.txt --budget 82 --hidden 64 -o less.gguf\n"
                 "  lowkey train lora -f book.txt --sidecar m.lk.gguf \\\n"
                 "      --kv \"all: k=latent v=latent\" -o recovered.lk.gguf\n",
     .run = cmd_train},

    {.name = "recipes",
     .summary = "List the presets, or check recipes and show their levels.",
     .operands = "[RECIPE...]",
     .complete = "RECIPE",
     .description = "Without operands, lists the presets. Otherwise checks the given recipes and "
                    "shows their levels.",
     .examples = "  lowkey recipes\n"
                 "  lowkey recipes best-3 \"body: k=kivi4 v=kivi2; residual 128: f16\"\n"
                 "  lowkey recipes my.recipe\n"
                 "  lowkey recipes --combinations\n",
     .run = cmd_recipes},

    {.name = "inspect",
     .summary = "Show a cache by layer and level: size, errors and attention.",
     .operands = "",
     .operand_hint = "a text is given with -f",
     .description =
         "Evaluates a text with the recipe's cache and with a full f16 cache: the last tokens, "
         "normally 32, are decoded one by one, and the tokens before them are prefilled. Prints by "
         "level and by layer how many tokens are held in how many bits and bytes, the mean squared "
         "error of K and V divided by their mean square, the share of the last tokens' attention "
         "that each level received, and the Hellinger distance, from 0 to 1, between their "
         "attention and the full cache's.",
     .examples = "  lowkey inspect --kv best-3 -f book.txt\n"
                 "  lowkey inspect --kv best-3 -f book.txt -c 4k --json >cache.json\n"
                 "  lowkey inspect -m model.gguf --kv kivi-2 --layers\n",
     .run = cmd_inspect},

    {.name = "compress",
     .summary = "Make a sidecar with low-rank bases for a model's keys and values.",
     .operands = "",
     .operand_hint = "a text is given with --text",
     .description =
         "Evaluates a text, finds for every layer the directions in which its keys and values vary "
         "most, and writes them to a sidecar: a file that belongs to one model and allows recipes "
         "with low-rank latents. `docs/latents.md` describes the methods and their measured "
         "quality.\n\n"
         "The sidecar appears under its name only when it is complete. While the text is "
         "evaluated, statistics are kept next to it in `OUTPUT.stats`; after an interruption, the "
         "same command continues from them.",
     .examples = "  lowkey compress --method palu --text book.txt -o model.lk.gguf\n"
                 "  lowkey compress --method tale --text book.txt --rank 50% -o m.lk.gguf\n"
                 "  lowkey compress --method oscar --text book.txt --type f32 -o m.lk.gguf\n"
                 "  lowkey compress --method kvheads --text self --tokens 16k -o m.lk.gguf\n",
     .run = cmd_compress},

    {.name = "export",
     .summary = "Write a model and what its sidecar changes as a plain GGUF file.",
     .operands = "",
     .operand_hint = "the files are given with --sidecar and -o",
     .description =
         "Writes a model that needs no sidecar: llama.cpp and other programs that know the "
         "architecture run it. Adapters of `lowkey train lora` are added to the attention weights. "
         "Bases of `lowkey compress --method kvheads` are multiplied into them, if the model has "
         "no RoPE; the written model has fewer KV heads. Everything else in the file stays as it "
         "is.\n\n"
         "What a plain model cannot have is an error, for example bases of a model with RoPE. With "
         "`--adapters-only`, they are left out. The file appears under its name only when it is "
         "complete.",
     .examples = "  lowkey export -m model.gguf --sidecar recovered.lk.gguf -o recovered.gguf\n"
                 "  lowkey export -m m.gguf --sidecar r.lk.gguf --adapters-only -o r.gguf\n"
                 "  lowkey export -m bloom.gguf --sidecar heads.lk.gguf --type f32 -o fewer.gguf\n",
     .run = cmd_export},

    {.name = "tune",
     .summary = "Find a recipe for a model: bits of each layer, side and age.",
     .operands = "",
     .operand_hint = "a text is given with --text",
     .description =
         "Measures how much each layer's keys and values lose at a few numbers of bits, with a "
         "full cache otherwise. Then it finds the bits of each layer, side and age that lose least "
         "in a given size, measures variants of the result and keeps the best one. The size is "
         "given as bits per value, as the size of another recipe, in MiB, or indirectly as the "
         "largest KL. Everything that a cache holds counts.\n\n"
         "The table at the end is measured on text that had no part in tuning. `docs/tuning.md` "
         "describes the method and its cost. A run that is interrupted continues when the same "
         "command is given again.",
     .examples = "  lowkey tune --text book.txt --like best-3 --weights f32 -o my.recipe\n"
                 "  lowkey tune --text book.txt --bits 3.2 -c 8k -o small.recipe\n"
                 "  lowkey tune --text book.txt --max-kl 0.005 -o close.recipe\n"
                 "  lowkey run --kv my.recipe -p Hello\n",
     .run = cmd_tune},

    {.name = "info",
     .summary = "Show properties of a model and of this machine.",
     .operands = "",
     .description = "Shows the model's shape and sizes, which attention kernels are in use, and "
                    "which CPU features faster kernels would need.",
     .examples = "  lowkey info -m model.gguf\n"
                 "  lowkey info --json\n",
     .run = cmd_info},
};

const struct command *find_command(const char *name) {
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(command_table[i].name, name) == 0) return &command_table[i];
    }
    return NULL;
}

/* A command's option table points to the variables of its own function, so the table exists only
 * while that function runs. */
void visit_options(help_printer *visit) {
    for (size_t i = 0; i < N_COMMANDS; i++) {
        struct command command = command_table[i];
        char name[32], option[] = "--help";
        char *argv[] = {name, option, NULL};
        snprintf(name, sizeof name, "%s", command.name);
        command.print_help = visit;
        command.run(&command, 2, argv);
    }
}
