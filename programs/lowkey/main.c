/* lowkey: LLM inference whose key-value cache stays compressed. One verb, one file. */
#include "commands.h"
#include "lowkey.h"
#include "progress.h"
#include "say.h"

#include <locale.h>
#include <string.h>

static const struct verb verbs[] = {
    {"run", "Continue a prompt.", "",
     "  lowkey run -p \"The capital of France is\" -n 20\n"
     "  lowkey run --kv best-3 --stats -f book.txt -n 200\n"
     "  echo \"Name three rivers.\" | lowkey run --chat --greedy\n"
     "  lowkey run --kv \"sink 4: f16; body: k=rot3 v=rot2; window 128: f16\" --json -p Hello\n",
     run_verb},
    {"chat",
     "Talk with a model. Without -m it uses the default model, and fetches it the first time.", "",
     "  lowkey chat\n"
     "  lowkey chat -m model.gguf --kv best-3 --system \"Answer in one sentence.\"\n"
     "  echo \"What is a cache?\" | lowkey chat --greedy\n",
     chat_verb},
    {"serve", "Serve the model over HTTP, in OpenAI's form, with a page to chat.", "",
     "  lowkey serve\n"
     "  lowkey serve -m model.gguf --kv best-3 --allow-kv presets -c 32k --cache-limit 2048\n"
     "  lowkey serve --host 0.0.0.0 --api-key-file keys.txt --parallel 16\n",
     serve_verb},
    {"plan", "Say what memory contexts will need under recipes, without running anything.", "",
     "  lowkey plan -c 4k,32k\n"
     "  lowkey plan --kv f16 --kv best-3 -c 131072\n"
     "  lowkey plan --kv best-2 --fit 4096\n",
     plan_verb},
    {"perplexity", "Compare recipes with the full cache on a text.", "",
     "  lowkey perplexity -f book.txt --kv best-4 --kv best-3 --kv best-2 --weights f32\n"
     "  lowkey perplexity -f book.txt -c 2k --chunks 2 --kv kivi-2 --json\n",
     perplexity_verb},
    {"bench", "Measure the speed of recipes at chosen depths.", "",
     "  lowkey bench\n"
     "  lowkey bench --kv f16 --kv best-3 --depth 0,8k,32k\n"
     "  lowkey bench --kv best-4 --depth 128k -p 0 -n 16 --repeat 5 --json\n",
     bench_verb},
    {"eval", "Evaluate recipes with tasks, each against the full cache.", "TASK...",
     "  lowkey eval text --text book.txt --kv best-4 --kv best-3 --kv llama.cpp:q8_0 --weights "
     "f32\n"
     "  lowkey eval text choice --text book.txt --data DIR --kv best-3 --quick -o results.jsonl\n",
     eval_verb},
    {"train", "Train what a recipe needs for one model: networks for LESS.", "less",
     "  lowkey train less -f book.txt --budget 256 -o less.gguf\n"
     "  lowkey train less -m model.gguf -f one.txt -f two.txt --budget 82 --hidden 64 -o "
     "less.gguf\n",
     train_verb},
    {"recipes", "List the presets, or check recipes and show what they mean.", "[RECIPE...]",
     "  lowkey recipes\n"
     "  lowkey recipes best-3 \"body: k=kivi4 v=kivi2; residual 128: f16\"\n"
     "  lowkey recipes my.recipe\n",
     recipes_verb},
    {"inspect", "Show what a cache holds by layer and level, its errors, and what is attended to.",
     "",
     "  lowkey inspect --kv best-3 -f book.txt\n"
     "  lowkey inspect --kv best-3 -f book.txt -c 4k --svg cache.svg\n"
     "  lowkey inspect -m model.gguf --kv kivi-2 --layers\n",
     inspect_verb},
    {"report", "Make one HTML page of results: quality against memory, speed, tables.",
     "RESULTS.jsonl...",
     "  lowkey report results.jsonl -o report.html\n"
     "  lowkey report smollm2.jsonl qwen.jsonl --bench bench.json -o report.html\n",
     report_verb},
    {"compress", "Make a sidecar with bases of low rank for a model's keys and values.", "",
     "  lowkey compress --method palu --text book.txt -o model.lk.gguf\n"
     "  lowkey compress -m model.gguf --method tale --text book.txt --rank 50% -o model.lk.gguf\n"
     "  lowkey compress --method kvheads --text self --tokens 16k -o model.lk.gguf\n",
     compress_verb},
    {"info", "Show facts about a model and this machine.", "",
     "  lowkey info -m model.gguf\n"
     "  lowkey info --json\n",
     info_verb},
};

enum { N_VERB = sizeof verbs / sizeof verbs[0] };

static const struct verb *find_verb(const char *name) {
    for (size_t i = 0; i < N_VERB; i++) {
        if (strcmp(verbs[i].name, name) == 0) return &verbs[i];
    }
    return NULL;
}

static int overview(void) {
    printf("lowkey %s: LLM inference whose key-value cache stays compressed\n\nusage: lowkey VERB "
           "[options]\n\n",
           lk_version());
    for (size_t i = 0; i < N_VERB; i++) printf("  %-12s %s\n", verbs[i].name, verbs[i].summary);
    printf("  %-12s %s\n", "help", "Show the options of a verb, with examples.");
    printf("\nExamples\n"
           "  lowkey chat\n"
           "  lowkey run -m model.gguf --kv best-3 --stats -p \"Once upon a time\"\n"
           "  lowkey help run\n");
    return finish_output(STATUS_OK);
}

static int help(int argc, char **argv) {
    if (argc < 3) return overview();
    const struct verb *verb = find_verb(argv[2]);
    if (!verb) return complain("unknown verb '%s'; 'lowkey help' lists them", argv[2]);
    char flag[] = "--help";
    char *again[] = {argv[2], flag, NULL};
    return verb->run(verb, 2, again);
}

int main(int argc, char **argv) {
    /* Only how characters are read: numbers are written and read with a point everywhere. */
    setlocale(LC_CTYPE, "");
    if (!speaks_utf8()) setlocale(LC_CTYPE, "C.UTF-8");
    interrupt_catch();
    const char *name = argc > 1 ? argv[1] : "help";
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return help(argc, argv);
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("lowkey %s\n", lk_version());
        return finish_output(STATUS_OK);
    }
    const struct verb *verb = find_verb(name);
    if (!verb && name[0] == '-')
        return complain("unknown option '%s'; expected a verb first: see 'lowkey help'", name);
    if (!verb) return complain("unknown verb '%s'; 'lowkey help' lists them", name);
    return finish_output(verb->run(verb, argc - 1, argv + 1));
}
