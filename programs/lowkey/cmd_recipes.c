/* lowkey recipes: list the presets, or check recipes and show their levels. */
#include "cmd.h"
#include "common.h"
#include "lowkey_serve.h"
#include "output.h"
#include "table.h"
#include "xalloc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static json_t *recipe_levels_json(const lk_recipe *recipe) {
    json_t *list = json_array();
    lk_recipe_level level;
    for (size_t i = 0; lk_recipe_get_level(recipe, i, &level); i++) {
        json_array_append_new(list, json_pack("{s:s s:s s:s}", "name", level.name, "k",
                                              level.k_codec, "v", level.v_codec));
    }
    return list;
}

static json_t *tuned_json(void) {
    json_t *list = json_array();
    lk_preset p;
    for (size_t i = 0; lk_recipe_tuned(i, &p); i++) {
        char model[17];
        snprintf(model, sizeof model, "%016" PRIx64, p.model);
        json_array_append_new(list, json_pack("{s:s s:s s:s s:s}", "name", p.name, "text", p.text,
                                              "note", p.note, "model", model));
    }
    return list;
}

static int list_presets_json(void) {
    json_t *list = json_array();
    lk_preset p;
    for (size_t i = 0; lk_recipe_preset(i, &p); i++) {
        lk_recipe *recipe = NULL;
        int status = recipe_open(p.text, &recipe);
        if (status) {
            json_decref(list);
            return status;
        }
        json_array_append_new(list, json_pack("{s:s s:s s:s s:s? s:o}", "name", p.name, "text",
                                              p.text, "note", p.note, "sidecar", p.compress,
                                              "levels", recipe_levels_json(recipe)));
        lk_recipe_free(recipe);
    }
    return json_print(json_pack("{s:o s:o}", "presets", list, "tuned", tuned_json()), false);
}

static int list_presets(void) {
    enum { NAME_COLUMN = 13, TUNED_COLUMN = 24, DEFAULT_WIDTH = 100 };
    const char *bold = use_color(stdout) ? "\x1b[1m" : "", *plain = *bold ? "\x1b[0m" : "";
    int width = terminal_width(stdout) ? terminal_width(stdout) : DEFAULT_WIDTH;
    lk_preset p;
    for (size_t i = 0; lk_recipe_preset(i, &p); i++) {
        printf("%s%s%s%*s", bold, p.name, plain, (int)(NAME_COLUMN - strlen(p.name)), "");
        print_wrapped(stdout, p.text, NAME_COLUMN, NAME_COLUMN + 2, width);
        printf("%*s", NAME_COLUMN, "");
        print_wrapped(stdout, p.note, NAME_COLUMN, NAME_COLUMN, width);
        if (!p.compress) continue;
        char *how = xasprintf("needs a sidecar: lowkey compress %s --text BOOK -o FILE, then "
                              "--sidecar FILE ('lowkey plan --sidecar FILE' adds its bytes)",
                              p.compress);
        printf("%*s", NAME_COLUMN, "");
        print_wrapped(stdout, how, NAME_COLUMN, NAME_COLUMN, width);
        free(how);
    }
    printf("\n%sTuned for one model%s\n"
           "'auto' (the default of run, chat and serve), 'auto-3' and 'auto-2' are what\n"
           "'lowkey tune -m MODEL' found in the sizes of best-4, best-3 and best-2, else\n"
           "these presets, else best-N.\n",
           bold, plain);
    for (size_t i = 0; lk_recipe_tuned(i, &p); i++) {
        printf("  %s%s%s%*s", bold, p.name, plain, (int)(TUNED_COLUMN - strlen(p.name)), "");
        print_wrapped(stdout, p.note, TUNED_COLUMN + 2, TUNED_COLUMN + 2, width);
    }
    fputs("\nA recipe lists levels from the oldest tokens to the newest, for example\n"
          "  sink 4: f16; body: k=rot3 v=rot2; recent 10%: rot4; window 128: f16\n"
          "Each has one codec, or one for K and one for V.\n\n"
          "Levels\n"
          "  sink N              the first N tokens\n"
          "  sink N(shift)       positions are counted among the tokens that are held\n"
          "  body                all other tokens; 'body: none' drops them; 'all' if alone\n"
          "  keep N by POLICY    in place of body: N tokens that h2o, h2o(mean), tova,\n"
          "                      tova(apart), random or newest chooses; N%: of the tokens\n"
          "                      so far; N% of context: of the model's context\n"
          "  recent N, window N  the newest N tokens; also N%\n"
          "  residual N          KIVI's buffer: K grows to N tokens and is emptied at once\n"
          "Parts that change levels\n"
          "  layers LIST         other codecs for the body in some layers, another 'keep N\n"
          "                      by POLICY', or 'none'; 'layers LIST recent': that level\n"
          "  heads LIST          other bits for some KV heads; 'layers LIST heads LIST'\n"
          "  absorb less         evicted tokens are summed up in a state ('train less')\n"
          "  eager               rows are projected and encoded before any query attends\n"
          "  read N%             decoding reads the N% of tiles that promise most attention\n"
          "Codecs\n"
          "  f16, int8, kivi2 and kivi4 (g32, g64, g128),\n"
          "  asym2 to asym8 (g32, g64, g128, hadamard),\n"
          "  rot1 to rot8 (mean, nomean, sigma, nosigma, lloyd, uniform, trellis);\n"
          "  of other projects: hqq2 to hqq4 (g32, g64, g128), kvquant2 to kvquant4,\n"
          "  kvarn2 to kvarn8, oscar2 to oscar4 (clip96), nf4;\n"
          "  with a sidecar: latent, latent50%, latent50%+CODEC; for K latent50%(pre), too\n",
          stdout);
    return STATUS_OK;
}

static void print_level_table(const lk_recipe *recipe) {
    lk_recipe_level level;
    struct table table = table_new("lll");
    table_cell(&table, "level");
    table_cell(&table, "K");
    table_cell(&table, "V");
    for (size_t i = 0; lk_recipe_get_level(recipe, i, &level); i++) {
        table_cell(&table, "%s", level.name);
        table_cell(&table, "%s", level.k_codec);
        table_cell(&table, "%s", level.v_codec);
    }
    table_print(&table, stdout, true);
}

static int check_recipes(const struct string_list *kv, bool json) {
    struct recipes recipes;
    int status = recipes_open(kv, "f16", &recipes);
    for (size_t i = 0; !status && i < recipes.n; i++)
        if (!recipes.item[i])
            status = print_error("what %s stands for depends on the model; see 'lowkey plan -m "
                                 "MODEL --kv %s'",
                                 recipes.name[i], recipes.name[i]);
    if (status) {
        recipes_free(&recipes);
        return status;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < recipes.n; i++) {
        const lk_recipe *recipe = recipes.item[i];
        if (json) {
            json_array_append_new(list, json_pack("{s:s s:o}", "text", lk_recipe_text(recipe),
                                                  "levels", recipe_levels_json(recipe)));
        } else {
            printf("%s%s\n", i ? "\n" : "", lk_recipe_text(recipe));
            print_level_table(recipe);
        }
    }
    recipes_free(&recipes);
    if (json) return json_print(json_pack("{s:o}", "recipes", list), false);
    json_decref(list);
    return STATUS_OK;
}

static json_t *combinations_json(void) {
    json_t *list = json_array();
    lk_combination c;
    for (size_t i = 0; lk_recipe_combination(i, &c); i++)
        json_array_append_new(list, json_pack("{s:s s:s s:s? s:s}", "a", c.a, "b", c.b, "reason",
                                              c.reason, "example", c.example));
    return json_pack("{s:o}", "combinations", list);
}

/* Index of a name, which is added if it is new and there is room for it. */
static size_t index_of(const char *name, const char **names, size_t *n, size_t max) {
    for (size_t i = 0; i < *n; i++)
        if (strcmp(names[i], name) == 0) return i;
    if (*n < max) names[(*n)++] = name;
    return *n - 1;
}

/* A triangle of all pairs of features: '+' if they can be combined, or else the letter of the
 * reason, which follows below. */
static int list_combinations(void) {
    enum { MAX_NAME = 64, MAX_REASON = 52, NAME_COLUMN = 20, WIDTH = 100 };
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const char *name[MAX_NAME], *reason[MAX_REASON];
    char sign[MAX_NAME][MAX_NAME];
    size_t n_name = 0, n_reason = 0;
    lk_combination c;
    memset(sign, ' ', sizeof sign);
    for (size_t i = 0; lk_recipe_combination(i, &c) && n_name + 2 <= MAX_NAME; i++) {
        size_t a = index_of(c.a, name, &n_name, MAX_NAME),
               b = index_of(c.b, name, &n_name, MAX_NAME);
        sign[b][a] = c.reason ? letters[index_of(c.reason, reason, &n_reason, MAX_REASON)] : '+';
    }
    for (size_t b = 0; b < n_name; b++) {
        size_t end = b;
        while (end > 0 && sign[b][end - 1] == ' ') end--;
        printf("%2zu %-*s", b + 1, end ? NAME_COLUMN : 0, name[b]);
        for (size_t a = 0; a < end; a++) printf("  %c", sign[b][a]);
        printf("\n");
    }
    printf("%*s", 3 + NAME_COLUMN, "");
    for (size_t a = 0; a + 1 < n_name; a++) printf(" %2zu", a + 1);
    printf("\n\n");
    for (size_t i = 0; i < n_reason; i++) {
        printf("%c  ", letters[i]);
        print_wrapped(stdout, reason[i], 3, 3, WIDTH);
    }
    return STATUS_OK;
}

int cmd_recipes(const struct command *command, int argc, char **argv) {
    bool json = false, combinations = false;
    int first;
    struct string_list kv = {0};
    const struct opt_group groups[] = {
        {"Output",
         {{0, "combinations", NULL, "list which features of recipes can be combined", OPT_FLAG,
           &combinations},
          {0, "json", NULL, "print JSON", OPT_FLAG, &json}}},
    };
    int result = args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
    if (result != ARGS_RUN) return result;
    if (argc - first > MAX_LIST) return print_error("more than %d recipes", MAX_LIST);
    if (combinations && first < argc)
        return print_error("--combinations takes no recipes; leave one of them out");
    if (combinations) return json ? json_print(combinations_json(), false) : list_combinations();
    while (first < argc) kv.item[kv.n++] = argv[first++];
    if (kv.n) return check_recipes(&kv, json);
    return json ? list_presets_json() : list_presets();
}
