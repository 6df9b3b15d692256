/* A chain of libllama samplers, with logit biases and an optional grammar, whose state can be
 * saved. */
#include "token/sampling.h"

#include "base/log.h"
#include "base/splitmix64.h"

#include "llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAST_N = 1 << 20, MAX_GRAMMAR = 1 << 17, MAX_NESTING = 200, MAX_BIAS = 1000000 };

struct lk_sampling {
    struct llama_sampler *chain;   /* penalties to choice; created when n_vocab is known */
    struct llama_sampler *grammar; /* or NULL */
    lk_sampler_opts opts;          /* without grammar and bias, which the caller owns */
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

/* FNV-1a. */
static uint64_t fnv1a(const void *data, size_t n) {
    const unsigned char *byte = data;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}

/* Options as text. Samplers with the same text make the same choices. The grammar and the biases
 * are represented by hashes. */
static void print_options(char *buf, size_t cap, const lk_sampler_opts *o) {
    int len =
        snprintf(buf, cap,
                 "temperature %a top-k %d top-p %a min-p %a penalty %a frequency %a presence %a "
                 "over %d seed %u grammar %llx",
                 o->temperature, o->top_k, o->top_p, o->min_p, o->repeat_penalty,
                 o->frequency_penalty, o->presence_penalty, o->repeat_last_n, o->seed,
                 (unsigned long long)fnv1a(o->grammar, o->grammar ? strlen(o->grammar) : 0));
    if (o->n_bias || o->ignore_eos)
        snprintf(buf + len, cap - (size_t)len, " %s %llx", o->ignore_eos ? "endless" : "bias",
                 (unsigned long long)fnv1a(o->bias, o->n_bias * sizeof *o->bias));
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
    for (size_t i = 0; i < o->n_bias; i++)
        if (o->bias[i].bias != -INFINITY && !(fabsf(o->bias[i].bias) <= MAX_BIAS))
            return lk_fail(err, LK_E_ARG, "the bias of token %d is %g, expected -%d to %d",
                           o->bias[i].tok, o->bias[i].bias, MAX_BIAS, MAX_BIAS);
    return LK_OK;
}

/* libllama's parser is recursive. Limits on size and nesting bound its stack. */
static lk_status check_grammar(const char *text, lk_err *err) {
    size_t len = strlen(text);
    int depth = 0;
    if (len > MAX_GRAMMAR)
        return lk_fail(err, LK_E_FORMAT, "the grammar has %zu bytes, at most %d are supported", len,
                       MAX_GRAMMAR);
    for (size_t i = 0; i < len; i++) {
        depth += (text[i] == '(') - (text[i] == ')');
        if (depth > MAX_NESTING)
            return lk_fail(err, LK_E_FORMAT, "the grammar nests parentheses deeper than %d",
                           MAX_NESTING);
    }
    return LK_OK;
}

static lk_status init_grammar(struct lk_sampling *s, const struct lk_vocab *vocab, const char *text,
                              lk_err *err) {
    lk_status status = check_grammar(text, err);
    if (status) return status;
    const struct llama_vocab *v = vocab ? lk_vocab_llama(vocab) : NULL;
    if (!v) return lk_fail(err, LK_E_UNSUPPORTED, "a grammar needs a model with a tokenizer");
    s->grammar = llama_sampler_init_grammar(v, text, "root");
    s->n_vocab = llama_vocab_n_tokens(v); /* the grammar looks up token texts */
    return s->grammar
               ? LK_OK
               : lk_fail(
                     err, LK_E_FORMAT,
                     "the grammar does not parse, is left-recursive, or has no rule named root");
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
    s->opts = *opts;
    print_options(s->options, sizeof s->options, opts);
    s->opts.grammar = NULL;
    s->opts.bias = NULL;
    status = init_bias(s, vocab, opts, err);
    if (!status && opts->grammar && *opts->grammar)
        status = init_grammar(s, vocab, opts->grammar, err);
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
    if (s->grammar) llama_sampler_free(s->grammar);
    free(s->candidate);
    free(s->bias);
    free(s->tok);
    free(s);
}

/* libllama replaces one seed value by a random one. Use a fixed seed instead, so that every seed is
 * deterministic. */
static uint32_t llama_seed(const lk_sampler_opts *o) {
    return o->seed == LLAMA_DEFAULT_SEED ? (uint32_t)lk_splitmix64_step : o->seed;
}

static lk_status init_chain(struct lk_sampling *s, int32_t n_vocab, lk_err *err) {
    const lk_sampler_opts *o = &s->opts;
    for (size_t i = 0; i < s->n_bias; i++)
        if (s->bias[i].tok < 0 || s->bias[i].tok >= n_vocab)
            return lk_fail(err, LK_E_ARG, "logit bias for token %d, expected 0 to %d",
                           s->bias[i].tok, n_vocab - 1);
    s->candidate = malloc((size_t)n_vocab * sizeof *s->candidate);
    s->chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (!s->candidate || !s->chain) {
        if (s->chain) llama_sampler_free(s->chain);
        free(s->candidate);
        s->chain = NULL;
        s->candidate = NULL;
        return lk_fail(err, LK_E_NOMEM, "not enough memory to sample from %d tokens", n_vocab);
    }
    s->n_vocab = n_vocab;
    llama_sampler_chain_add(
        s->chain, llama_sampler_init_penalties(n_vocab, o->repeat_last_n, o->repeat_penalty,
                                               o->frequency_penalty, o->presence_penalty));
    if (o->temperature <= 0) {
        llama_sampler_chain_add(s->chain, llama_sampler_init_greedy());
        return LK_OK;
    }
    llama_sampler_chain_add(s->chain, llama_sampler_init_top_k(o->top_k));
    llama_sampler_chain_add(s->chain, llama_sampler_init_top_p(o->top_p, 1));
    llama_sampler_chain_add(s->chain, llama_sampler_init_min_p(o->min_p, 1));
    llama_sampler_chain_add(s->chain, llama_sampler_init_temp(o->temperature));
    llama_sampler_chain_add(s->chain, llama_sampler_init_dist(llama_seed(o)));
    return LK_OK;
}

/* Fill the candidates from logits and biases, apply the grammar if `constrained`, and apply the
 * chain. Returns the chosen entry, NULL if no token has a logit above -infinity. */
static const llama_token_data *choose_token(struct lk_sampling *s, const float *logits,
                                            bool constrained) {
    for (int32_t i = 0; i < s->n_vocab; i++) s->candidate[i] = (llama_token_data){i, logits[i], 0};
    for (size_t i = 0; i < s->n_bias; i++) s->candidate[s->bias[i].tok].logit += s->bias[i].bias;
    llama_token_data_array list = {s->candidate, (size_t)s->n_vocab, -1, false};
    if (constrained) {
        llama_sampler_apply(s->grammar, &list);
        size_t kept = 0; /* remove forbidden tokens, which would count towards top-k */
        for (size_t i = 0; i < list.size; i++) {
            if (list.data[i].logit > -INFINITY) list.data[kept++] = list.data[i];
        }
        if (kept == 0) return NULL;
        list.size = kept;
    }
    llama_sampler_apply(s->chain, &list);
    s->n_draw++;
    if (list.selected < 0 || (size_t)list.selected >= list.size) return NULL;
    const llama_token_data *chosen = &list.data[list.selected];
    return chosen->logit > -INFINITY ? chosen : NULL;
}

static bool is_allowed_by_grammar(struct lk_sampling *s, llama_token tok) {
    llama_token_data one = {tok, 1.0f, 0};
    llama_token_data_array list = {&one, 1, -1, false};
    llama_sampler_apply(s->grammar, &list);
    return one.logit > -INFINITY;
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

static void accept_token(struct lk_sampling *s, llama_token tok) {
    llama_sampler_accept(s->chain, tok);
    if (s->grammar) llama_sampler_accept(s->grammar, tok);
    s->tok[s->n_tok++] = tok;
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
    const llama_token_data *chosen = choose_token(s, logits, false);
    if (s->grammar && (!chosen || !is_allowed_by_grammar(s, chosen->id)))
        chosen = choose_token(s, logits, true);
    if (!chosen) {
        if (s->grammar) return lk_fail(err, LK_E_FORMAT, "the grammar allows no token here");
        if (s->n_bias) return lk_fail(err, LK_E_FORMAT, "the logit biases allow no token");
        return lk_fail(err, LK_E_ARG, "all logits are minus infinity");
    }
    *tok = chosen->id;
    accept_token(s, *tok);
    return LK_OK;
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
    if (s->grammar) llama_sampler_reset(s->grammar);
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
        llama_sampler_apply(last, &list);
    }
    for (uint32_t i = 0; i < saved->n_tok; i++) {
        llama_token t;
        memcpy(&t, tok + i, sizeof t);
        if (t < 0 || t >= n_vocab || (s->grammar && !is_allowed_by_grammar(s, t)))
            return lk_fail(err, LK_E_FORMAT,
                           "the sampler state contains a token that the sampler cannot choose");
        accept_token(s, t);
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
