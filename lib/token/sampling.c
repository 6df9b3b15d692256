/* A chain of libllama samplers, with logit biases and an optional grammar, whose state can be
 * saved. libllama's own grammars are not used: their time and memory have no bound. */
#include "token/sampling.h"

#include "base/ascii.h"
#include "base/cxx_call.h"
#include "base/hash.h"
#include "base/log.h"
#include "grammar/grammar_state.h"

#include "llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAST_N = 1 << 20, MAX_BIAS = 1000000 };

struct lk_sampling {
    struct llama_sampler *chain; /* penalties to choice; created when n_vocab is known */
    const struct lk_vocab *vocab;
    struct lk_grammar *grammar;          /* shared with copies, or NULL; the next three need it */
    struct lk_grammar_state *text;       /* what was chosen so far */
    const struct lk_token_bytes *tokens; /* the vocabulary's */
    uint64_t *allowed;                   /* bits [n_vocab], when they are first needed */
    char trigger[64];                    /* "": the grammar holds from the start */
    char tail[64];                       /* [n_tail] the newest text before the trigger */
    size_t n_tail;
    bool is_spent;                    /* the trigger may come first only, and did not or is over */
    bool holds;                       /* the grammar constrains the next token */
    bool in_thoughts;                 /* the trigger does not count */
    bool has_control;                 /* control tokens match by their texts */
    lk_sampler_opts opts;             /* without grammar and bias, which the caller owns */
    uint64_t grammar_hash, bias_hash; /* of the caller's */
    /* [n_bias] a copy of the caller's, plus one per end-of-generation token with ignore_eos */
    lk_logit_bias *bias;
    size_t n_bias;
    int32_t n_vocab;             /* of the chain or of the grammar's tokenizer; 0: not known yet */
    llama_token_data *candidate; /* [n_vocab] */
    char options[LK_SAMPLING_OPTIONS]; /* opts as text */
    uint64_t n_draw;                   /* number of times the chain was applied */
    llama_token *tok;                  /* [n_tok] accepted tokens, room for cap */
    uint32_t n_tok, cap;
};

/* Options as text. Samplers with the same text make the same choices. The grammar and the biases
 * are represented by hashes. */
static void print_options(struct lk_sampling *s) {
    const lk_sampler_opts *o = &s->opts;
    memset(s->options, 0, sizeof s->options);
    int len = snprintf(
        s->options, sizeof s->options,
        "temperature %a top-k %d top-p %a min-p %a penalty %a frequency %a presence %a "
        "over %d seed %u grammar %llx",
        o->temperature, o->top_k, o->top_p, o->min_p, o->repeat_penalty, o->frequency_penalty,
        o->presence_penalty, o->repeat_last_n, o->seed, (unsigned long long)s->grammar_hash);
    if (o->n_bias || o->ignore_eos)
        snprintf(s->options + len, sizeof s->options - (size_t)len, " %s %llx",
                 o->ignore_eos ? "endless" : "bias", (unsigned long long)s->bias_hash);
    if (*s->trigger) {
        len = (int)strlen(s->options);
        snprintf(s->options + len, sizeof s->options - (size_t)len, " %s %llx",
                 s->opts.trigger_first ? "first" : "after",
                 (unsigned long long)lk_fnv1a(LK_FNV1A_INIT, s->trigger, strlen(s->trigger)));
    } else if (s->has_control) {
        len = (int)strlen(s->options);
        snprintf(s->options + len, sizeof s->options - (size_t)len, " control");
    }
}

static lk_status check_opts(const lk_sampler_opts *o, lk_err *err) {
    if (!isfinite(o->temperature)) return lk_fail(err, LK_E_ARG, "the temperature is not a number");
    if (!(o->top_p >= 0 && o->top_p <= 1))
        return lk_fail(err, LK_E_ARG, "top-p is %g, expected 0 to 1", o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1))
        return lk_fail(err, LK_E_ARG, "min-p is %g, expected 0 to 1", o->min_p);
    if (!(o->repeat_penalty > 0 && o->repeat_penalty <= 100)) {
        return lk_fail(err, LK_E_ARG,
                       "the repetition penalty is %g, expected more than 0, at most 100",
                       o->repeat_penalty);
    }
    if (!(fabsf(o->frequency_penalty) <= 100 && fabsf(o->presence_penalty) <= 100)) {
        return lk_fail(err, LK_E_ARG,
                       "the frequency or presence penalty is not a number from -100 to 100");
    }
    if (o->repeat_last_n < 0 || o->repeat_last_n > MAX_LAST_N) {
        return lk_fail(err, LK_E_ARG, "repeat_last_n is %d, expected 0 to %d", o->repeat_last_n,
                       MAX_LAST_N);
    }
    if (o->trigger && strlen(o->trigger) >= sizeof((struct lk_sampling *)0)->trigger)
        return lk_fail(err, LK_E_ARG, "the trigger of a grammar has more than 63 bytes");
    for (size_t i = 0; i < o->n_bias; i++)
        if (o->bias[i].bias != -INFINITY && !(fabsf(o->bias[i].bias) <= MAX_BIAS))
            return lk_fail(err, LK_E_ARG, "the bias of token %d is %g, expected -%d to %d",
                           o->bias[i].tok, o->bias[i].bias, MAX_BIAS, MAX_BIAS);
    return LK_OK;
}

/* Start a text of the grammar. */
static lk_status init_text(struct lk_sampling *s, lk_err *err) {
    if (!s->vocab || !lk_vocab_llama(s->vocab))
        return lk_fail(err, LK_E_UNSUPPORTED, "a grammar needs a model with a tokenizer");
    lk_status status = lk_vocab_token_bytes(s->vocab, &s->tokens, err);
    if (!status) status = lk_grammar_state_new(&s->text, s->grammar, err);
    if (!status) s->n_vocab = (int32_t)s->tokens->n_vocab;
    s->holds = !*s->trigger;
    return status;
}

static lk_status init_bias(struct lk_sampling *s, const struct lk_vocab *vocab,
                           const lk_sampler_opts *o, lk_err *err) {
    const struct llama_vocab *v = o->ignore_eos && vocab ? lk_vocab_llama(vocab) : NULL;
    int32_t n_tok = v ? llama_vocab_n_tokens(v) : 0;
    size_t n_end = 0;
    for (int32_t i = 0; i < n_tok; i++) n_end += lk_vocab_is_eog(vocab, i);
    if (o->n_bias + n_end == 0) return LK_OK;
    s->bias = malloc((o->n_bias + n_end) * sizeof *s->bias);
    if (!s->bias) return lk_fail(err, LK_E_NOMEM, "not enough memory for a sampler");
    if (o->n_bias) memcpy(s->bias, o->bias, o->n_bias * sizeof *s->bias);
    s->n_bias = o->n_bias;
    for (int32_t i = 0; i < n_tok; i++)
        if (lk_vocab_is_eog(vocab, i)) s->bias[s->n_bias++] = (lk_logit_bias){i, -INFINITY};
    return LK_OK;
}

lk_status lk_sampling_new(struct lk_sampling **out, const struct lk_vocab *vocab,
                          const lk_sampler_opts *opts, lk_err *err) {
    lk_redirect_logs();
    lk_status status = check_opts(opts, err);
    if (status) return status;
    struct lk_sampling *s = calloc(1, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "not enough memory for a sampler");
    const char *grammar = opts->grammar ? opts->grammar : "";
    s->vocab = vocab;
    s->opts = *opts;
    s->opts.grammar = NULL;
    s->opts.bias = NULL;
    s->opts.trigger = NULL;
    if (*grammar && opts->trigger) memcpy(s->trigger, opts->trigger, strlen(opts->trigger) + 1);
    s->has_control = *grammar && opts->trigger;
    s->grammar_hash = lk_fnv1a(LK_FNV1A_INIT, grammar, strlen(grammar));
    s->bias_hash = lk_fnv1a(LK_FNV1A_INIT, opts->bias, opts->n_bias * sizeof *opts->bias);
    print_options(s);
    status = init_bias(s, vocab, opts, err);
    if (!status && *grammar) status = lk_grammar_new(&s->grammar, grammar, err);
    if (!status && s->grammar) status = init_text(s, err);
    if (status) {
        lk_sampling_free(s);
        return status;
    }
    *out = s;
    return LK_OK;
}

lk_status lk_sampling_copy(struct lk_sampling **out, const struct lk_sampling *from, uint32_t seed,
                           lk_err *err) {
    struct lk_sampling *s = calloc(1, sizeof *s);
    if (s && from->n_bias) s->bias = malloc(from->n_bias * sizeof *s->bias);
    if (!s || (from->n_bias && !s->bias)) {
        free(s);
        return lk_fail(err, LK_E_NOMEM, "not enough memory for a sampler");
    }
    s->vocab = from->vocab;
    s->opts = from->opts;
    s->opts.seed = seed;
    s->grammar_hash = from->grammar_hash;
    s->bias_hash = from->bias_hash;
    memcpy(s->trigger, from->trigger, sizeof s->trigger);
    s->has_control = from->has_control;
    print_options(s);
    s->n_bias = from->n_bias;
    if (s->n_bias) memcpy(s->bias, from->bias, s->n_bias * sizeof *s->bias);
    if (from->grammar) s->grammar = lk_grammar_share(from->grammar);
    lk_status status = s->grammar ? init_text(s, err) : LK_OK;
    if (status) {
        lk_sampling_free(s);
        return status;
    }
    *out = s;
    return LK_OK;
}

void lk_sampling_free(struct lk_sampling *s) {
    if (!s) return;
    if (s->chain) llama_sampler_free(s->chain);
    lk_grammar_state_free(s->text);
    lk_grammar_free(s->grammar);
    free(s->allowed);
    free(s->candidate);
    free(s->bias);
    free(s->tok);
    free(s);
}

size_t lk_sampling_bytes(const struct lk_sampling *s, int32_t n_vocab) {
    /* The chain keeps the tokens of repeat_last_n in a ring and counts them in a hash table, and
     * copies the candidates that top-k keeps. */
    const size_t per_repeated = 48, of_chain = 4096;
    size_t n = (size_t)n_vocab, bytes = sizeof *s + of_chain;
    bytes += n * sizeof *s->candidate + (size_t)s->opts.repeat_last_n * per_repeated;
    bytes += s->n_bias * sizeof *s->bias + s->cap * sizeof *s->tok;
    if (s->text) bytes += lk_grammar_state_bytes(s->text) + (n + 63) / 64 * sizeof *s->allowed;
    return bytes;
}

size_t lk_sampling_grammar_bytes(const struct lk_sampling *s) {
    return s->grammar ? lk_grammar_bytes(s->grammar) : 0;
}

/* libllama replaces one seed value by a random one. Use a fixed seed instead, so that every seed is
 * deterministic. */
static uint32_t llama_seed(const lk_sampler_opts *o) {
    return o->seed == LLAMA_DEFAULT_SEED ? (uint32_t)lk_splitmix64_step : o->seed;
}

static void make_chain(void *arg) {
    struct lk_sampling *s = arg;
    const lk_sampler_opts *o = &s->opts;
    s->chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(
        s->chain, llama_sampler_init_penalties(s->n_vocab, o->repeat_last_n, o->repeat_penalty,
                                               o->frequency_penalty, o->presence_penalty));
    if (o->temperature <= 0) {
        llama_sampler_chain_add(s->chain, llama_sampler_init_greedy());
        return;
    }
    llama_sampler_chain_add(s->chain, llama_sampler_init_top_k(o->top_k));
    llama_sampler_chain_add(s->chain, llama_sampler_init_top_p(o->top_p, 1));
    llama_sampler_chain_add(s->chain, llama_sampler_init_min_p(o->min_p, 1));
    llama_sampler_chain_add(s->chain, llama_sampler_init_temp(o->temperature));
    llama_sampler_chain_add(s->chain, llama_sampler_init_dist(llama_seed(o)));
}

static lk_status init_chain(struct lk_sampling *s, int32_t n_vocab, lk_err *err) {
    for (size_t i = 0; i < s->n_bias; i++)
        if (s->bias[i].tok < 0 || s->bias[i].tok >= n_vocab)
            return lk_fail(err, LK_E_ARG, "logit bias for token %d, expected 0 to %d",
                           s->bias[i].tok, n_vocab - 1);
    s->n_vocab = n_vocab;
    s->candidate = malloc((size_t)n_vocab * sizeof *s->candidate);
    lk_status status = s->candidate ? lk_cxx_call(make_chain, s, err) : LK_E_NOMEM;
    if (!status) return LK_OK;
    if (s->chain) llama_sampler_free(s->chain);
    free(s->candidate);
    s->chain = NULL;
    s->candidate = NULL;
    return lk_fail(err, status, "not enough memory to sample from %d tokens", n_vocab);
}

/* May this token follow? */
static lk_status is_allowed(struct lk_sampling *s, llama_token tok, bool *allowed, lk_err *err) {
    const struct lk_token_bytes *t = s->tokens;
    *allowed = true;
    if (!s->holds) return LK_OK;
    if (lk_vocab_is_eog(s->vocab, tok)) {
        *allowed = lk_grammar_is_complete(s->text);
        return LK_OK;
    }
    uint32_t entry = t->entry[tok];
    if (entry == LK_NO_ENTRY && s->has_control) { /* the form of a call may have control tokens */
        size_t n;
        const char *text = lk_vocab_token_text(s->vocab, tok, &n);
        *allowed = false;
        return n ? lk_grammar_allows(s->text, text, n, allowed, err) : LK_OK;
    }
    *allowed = entry != LK_NO_ENTRY;
    if (!*allowed) return LK_OK;
    return lk_grammar_allows(s->text, t->bytes + t->start[entry],
                             t->start[entry + 1] - t->start[entry], allowed, err);
}

/* Remove the candidates that the grammar does not allow; they would count towards top-k. */
static lk_status remove_forbidden(struct lk_sampling *s, llama_token_data_array *list,
                                  lk_err *err) {
    size_t size = ((size_t)s->n_vocab + 63) / 64 * sizeof *s->allowed, kept = 0;
    if (!s->allowed) s->allowed = malloc(size);
    if (!s->allowed) return lk_fail(err, LK_E_NOMEM, "not enough memory for a grammar");
    lk_status status = lk_grammar_mask(s->text, s->tokens, s->allowed, err);
    if (status) return status;
    const struct lk_control_tokens *control = lk_vocab_control_tokens(s->vocab);
    for (size_t i = 0; s->has_control && i < control->n; i++) {
        int32_t tok = control->at[i].id;
        bool allowed = false;
        if (!control->at[i].is_control || lk_vocab_is_eog(s->vocab, tok)) continue;
        status = is_allowed(s, tok, &allowed, err);
        if (status) return status;
        if (allowed) s->allowed[tok / 64] |= 1ull << (tok % 64);
    }
    bool complete = lk_grammar_is_complete(s->text);
    for (size_t i = 0; i < list->size; i++) {
        uint32_t tok = (uint32_t)list->data[i].id;
        bool allowed = (s->allowed[tok / 64] >> (tok % 64) & 1) ||
                       (complete && lk_vocab_is_eog(s->vocab, (int32_t)tok));
        if (allowed && list->data[i].logit > -INFINITY) list->data[kept++] = list->data[i];
    }
    list->size = kept;
    return LK_OK;
}

struct apply_call {
    struct llama_sampler *sampler;
    llama_token_data_array *list;
};

static void apply_sampler(void *arg) {
    struct apply_call *c = arg;
    llama_sampler_apply(c->sampler, c->list);
}

/* Fill the candidates from logits and biases, apply the grammar if `constrained`, and apply the
 * chain. *chosen is -1 if no token has a logit above -infinity. */
static lk_status choose_token(struct lk_sampling *s, const float *logits, bool constrained,
                              llama_token *chosen, lk_err *err) {
    for (int32_t i = 0; i < s->n_vocab; i++) s->candidate[i] = (llama_token_data){i, logits[i], 0};
    for (size_t i = 0; i < s->n_bias; i++) s->candidate[s->bias[i].tok].logit += s->bias[i].bias;
    llama_token_data_array list = {s->candidate, (size_t)s->n_vocab, -1, false};
    *chosen = -1;
    if (constrained) {
        lk_status status = remove_forbidden(s, &list, err);
        if (status || list.size == 0) return status;
    }
    lk_status status = lk_cxx_call(apply_sampler, &(struct apply_call){s->chain, &list}, err);
    if (status) return status;
    s->n_draw++;
    if (list.selected >= 0 && (size_t)list.selected < list.size &&
        list.data[list.selected].logit > -INFINITY)
        *chosen = list.data[list.selected].id;
    return LK_OK;
}

/* Make room for n accepted tokens. */
static lk_status reserve_tokens(struct lk_sampling *s, uint32_t n, lk_err *err) {
    if (n <= s->cap) return LK_OK;
    uint32_t cap = n + n / 2 + 64;
    llama_token *tok = realloc(s->tok, cap * sizeof *tok);
    if (!tok) return lk_fail(err, LK_E_NOMEM, "not enough memory for %u sampled tokens", n);
    s->tok = tok;
    s->cap = cap;
    return LK_OK;
}

struct accept_call {
    struct llama_sampler *sampler;
    llama_token tok;
};

static void accept_sampler(void *arg) {
    struct accept_call *c = arg;
    llama_sampler_accept(c->sampler, c->tok);
}

/* The same as find_trigger, for a trigger that only white space may precede. */
static size_t find_first_trigger(struct lk_sampling *s, const char *text, size_t n) {
    for (size_t i = 0; i < n && !s->is_spent; i++) {
        if (s->n_tail == 0 && lk_is_space(text[i])) continue;
        s->is_spent = text[i] != s->trigger[s->n_tail];
        if (s->is_spent || s->trigger[++s->n_tail]) continue;
        s->is_spent = true;
        return i + 1;
    }
    return 0;
}

/* Bytes of text[0..n), which follows the tail, up to the end of the trigger; 0: it is not complete
 * within them. The tail goes on. */
static size_t find_trigger(struct lk_sampling *s, const char *text, size_t n) {
    size_t n_trigger = strlen(s->trigger);
    if (s->opts.trigger_first) return find_first_trigger(s, text, n);
    for (size_t i = 0; i < n; i++) {
        if (s->n_tail == n_trigger) memmove(s->tail, s->tail + 1, --s->n_tail);
        s->tail[s->n_tail++] = text[i];
        if (s->n_tail < n_trigger || memcmp(s->tail, s->trigger, n_trigger) != 0) continue;
        s->n_tail = 0;
        return i + 1;
    }
    return 0;
}

/* The grammar after the text of a token, which it allows if it holds. What follows the trigger in
 * the same token may not match: then the grammar does not hold. */
static lk_status move_grammar(struct lk_sampling *s, llama_token tok, lk_err *err) {
    size_t n, from = 0;
    const char *text = lk_vocab_token_text(s->vocab, tok, &n);
    bool accepted = false;
    bool is_plain = s->tokens->entry[tok] != LK_NO_ENTRY;
    if (s->holds && !is_plain && (!s->has_control || lk_vocab_is_eog(s->vocab, tok))) return LK_OK;
    if (!s->holds && s->in_thoughts) return LK_OK;
    if (!s->holds) {
        from = find_trigger(s, text, n);
        if (!from) return LK_OK;
        lk_grammar_reset(s->text);
    }
    lk_status status = lk_grammar_accept(s->text, text + from, n - from, &accepted, err);
    if (status == LK_E_UNSUPPORTED && *s->trigger) { /* too ambiguous from here on */
        s->holds = false;
        return LK_OK;
    }
    if (!status && *s->trigger) s->holds = accepted && !lk_grammar_is_complete(s->text);
    return status;
}

/* Continue after a token that is allowed. */
static lk_status accept_token(struct lk_sampling *s, llama_token tok, lk_err *err) {
    lk_status status = lk_cxx_call(accept_sampler, &(struct accept_call){s->chain, tok}, err);
    if (!status && s->grammar) status = move_grammar(s, tok, err);
    if (!status) s->tok[s->n_tok++] = tok;
    return status;
}

lk_status lk_sampling_next(struct lk_sampling *s, const float *logits, int32_t n_vocab,
                           int32_t *tok, lk_err *err) {
    if (n_vocab < 1 || (s->n_vocab && s->n_vocab != n_vocab))
        return lk_fail(err, LK_E_ARG, "%d logits, expected %d", n_vocab, s->n_vocab);
    for (int32_t i = 0; i < n_vocab; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return lk_fail(err, LK_E_ARG, "the logit of token %d is not finite", i);
    }
    lk_status status = s->chain ? LK_OK : init_chain(s, n_vocab, err);
    if (!status) status = reserve_tokens(s, s->n_tok + 1, err);
    if (status) return status;
    /* Testing the whole vocabulary against the grammar is slow, and the choice is usually allowed.
     * So choose first, and apply the grammar to all candidates only if the choice is not
     * allowed. */
    llama_token chosen;
    bool allowed = false;
    status = choose_token(s, logits, false, &chosen, err);
    llama_token free_choice = chosen;
    if (!status && chosen >= 0) status = is_allowed(s, chosen, &allowed, err);
    if (!status && s->holds && !allowed) status = choose_token(s, logits, true, &chosen, err);
    bool gives_up = s->holds && *s->trigger && free_choice >= 0 &&
                    (status == LK_E_UNSUPPORTED || (!status && chosen < 0));
    if (gives_up) { /* the rest of this text is free: it was free to begin */
        s->holds = false;
        chosen = free_choice;
        status = LK_OK;
    }
    if (status) return status;
    if (chosen < 0) {
        if (s->holds) return lk_fail(err, LK_E_FORMAT, "the grammar allows no token here");
        if (s->n_bias) return lk_fail(err, LK_E_FORMAT, "the logit biases allow no token");
        return lk_fail(err, LK_E_ARG, "all logits are minus infinity");
    }
    status = accept_token(s, chosen, err);
    if (!status) *tok = chosen;
    return status;
}

lk_status lk_sampling_accept(struct lk_sampling *s, int32_t n_vocab, int32_t tok, lk_err *err) {
    if (tok < 0 || tok >= n_vocab) return lk_fail(err, LK_E_ARG, "there is no token %d", tok);
    lk_status status = s->chain ? LK_OK : init_chain(s, n_vocab, err);
    if (!status) status = reserve_tokens(s, s->n_tok + 1, err);
    return status ? status : accept_token(s, tok, err);
}

void lk_sampling_set_thoughts(struct lk_sampling *s, bool are_thoughts) {
    if (s->in_thoughts == are_thoughts) return;
    s->in_thoughts = are_thoughts;
    s->n_tail = 0;
    s->is_spent = false;
}

bool lk_sampling_save(const struct lk_sampling *s, const struct lk_writer *writer) {
    struct lk_sampling_state saved = {.n_draw = s->n_draw, .n_tok = s->n_tok, .seed = s->opts.seed};
    memcpy(saved.options, s->options, sizeof saved.options);
    return writer->put(writer->user, &saved, sizeof saved) &&
           (s->n_tok == 0 || writer->put(writer->user, s->tok, s->n_tok * sizeof *s->tok));
}

/* Back to the state after creation, with another seed. */
static void reset_sampling(struct lk_sampling *s, uint32_t seed) {
    if (s->chain) llama_sampler_free(s->chain);
    if (s->text) lk_grammar_reset(s->text);
    s->holds = s->grammar && !*s->trigger;
    s->n_tail = 0;
    s->is_spent = s->in_thoughts = false;
    free(s->candidate);
    s->chain = NULL;
    s->candidate = NULL;
    s->n_draw = s->n_tok = 0;
    s->opts.seed = seed;
}

/* Repeat the draws of the saved sampler and accept its tokens. */
static lk_status replay_state(struct lk_sampling *s, const struct lk_sampling_state *saved,
                              const llama_token *tok, int32_t n_vocab, lk_err *err) {
    lk_status status = init_chain(s, n_vocab, err);
    if (!status) status = reserve_tokens(s, saved->n_tok, err);
    if (status) return status;
    struct llama_sampler *last =
        llama_sampler_chain_get(s->chain, llama_sampler_chain_n(s->chain) - 1);
    for (; s->n_draw < saved->n_draw; s->n_draw++) { /* a draw does not depend on the candidates */
        llama_token_data one = {0, 1.0f, 0};
        llama_token_data_array list = {&one, 1, -1, false};
        status = lk_cxx_call(apply_sampler, &(struct apply_call){last, &list}, err);
        if (status) return status;
    }
    for (uint32_t i = 0; i < saved->n_tok; i++) {
        llama_token t;
        bool allowed = false;
        memcpy(&t, tok + i, sizeof t);
        bool exists = t >= 0 && t < n_vocab;
        if (exists) status = is_allowed(s, t, &allowed, err);
        if (exists && *s->trigger && (status == LK_E_UNSUPPORTED || !allowed)) {
            s->holds = false; /* it was given up here */
            allowed = true;
            status = LK_OK;
        }
        if (!status && !allowed)
            status = lk_fail(err, LK_E_FORMAT,
                             "the sampler state contains a token that the sampler cannot choose");
        if (!status) status = accept_token(s, t, err);
        if (status) return status;
    }
    return LK_OK;
}

lk_status lk_sampling_restore(struct lk_sampling *s, const void *data, size_t n, int32_t n_vocab,
                              bool *restored, lk_err *err) {
    struct lk_sampling_state saved;
    /* At most two draws per token, and some from calls that failed because no token was allowed. */
    const uint64_t max_draws_per_token = 2, max_failed_draws = 1000;
    if (n < sizeof saved) return lk_fail(err, LK_E_FORMAT, "the sampler state is truncated");
    memcpy(&saved, data, sizeof saved);
    if ((n - sizeof saved) / sizeof(llama_token) != saved.n_tok ||
        (n - sizeof saved) % sizeof(llama_token) != 0 ||
        saved.n_draw > max_draws_per_token * saved.n_tok + max_failed_draws)
        return lk_fail(err, LK_E_FORMAT, "the sampler state is inconsistent");
    *restored = memcmp(saved.options, s->options, sizeof s->options) == 0 &&
                (s->n_vocab == 0 || s->n_vocab == n_vocab);
    if (!*restored) return LK_OK;
    uint32_t own_seed = s->opts.seed;
    reset_sampling(s, saved.seed);
    lk_status status = replay_state(
        s, &saved, (const llama_token *)((const char *)data + sizeof saved), n_vocab, err);
    if (status) reset_sampling(s, own_seed);
    return status;
}
