#include "token/sampling.h"

#include "base/quiet.h"

#include "llama.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAST_N = 1 << 20, MAX_GRAMMAR = 1 << 17, MAX_NESTING = 200 };

struct lk_sampling {
    struct llama_sampler *chain;   /* penalties ... choice; made when n_vocab is known */
    struct llama_sampler *grammar; /* or NULL */
    lk_sampler_opts       opts;    /* its grammar is not read after lk_sampling_new */
    int32_t               n_vocab; /* of the chain, or of the grammar's tokenizer; 0: not known yet */
    llama_token_data     *candidate; /* [n_vocab] */
};

static lk_status check_opts(const lk_sampler_opts *o, lk_err *err) {
    if (!isfinite(o->temperature)) return lk_fail(err, LK_E_ARG, "the temperature is not a number");
    if (!(o->top_p >= 0 && o->top_p <= 1)) return lk_fail(err, LK_E_ARG, "top-p is %g, expected 0 to 1", o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1)) return lk_fail(err, LK_E_ARG, "min-p is %g, expected 0 to 1", o->min_p);
    if (!(o->repeat_penalty > 0 && o->repeat_penalty <= 100)) {
        return lk_fail(err, LK_E_ARG, "the repetition penalty is %g, expected more than 0, at most 100", o->repeat_penalty);
    }
    if (o->repeat_last_n < 0 || o->repeat_last_n > MAX_LAST_N) {
        return lk_fail(err, LK_E_ARG, "the repetition penalty's length is %d, expected 0 to %d", o->repeat_last_n, MAX_LAST_N);
    }
    return LK_OK;
}

/* libllama's parser recurses; size and nesting are bounded so that its stack is. */
static lk_status check_grammar(const char *text, lk_err *err) {
    size_t len = strlen(text);
    int depth = 0;
    if (len > MAX_GRAMMAR) return lk_fail(err, LK_E_FORMAT, "the grammar has %zu bytes; at most %d are accepted", len, MAX_GRAMMAR);
    for (size_t i = 0; i < len; i++) {
        depth += (text[i] == '(') - (text[i] == ')');
        if (depth > MAX_NESTING) return lk_fail(err, LK_E_FORMAT, "the grammar nests deeper than %d parentheses", MAX_NESTING);
    }
    return LK_OK;
}

static lk_status make_grammar(struct lk_sampling *s, const struct lk_vocab *vocab, const char *text, lk_err *err) {
    lk_status status = check_grammar(text, err);
    if (status != LK_OK) return status;
    const struct llama_vocab *v = vocab ? lk_vocab_llama(vocab) : NULL;
    if (!v) return lk_fail(err, LK_E_UNSUPPORTED, "a grammar needs a model with a tokenizer");
    s->grammar = llama_sampler_init_grammar(v, text, "root");
    s->n_vocab = llama_vocab_n_tokens(v); /* the grammar looks texts up by token */
    return s->grammar ? LK_OK : lk_fail(err, LK_E_FORMAT, "the grammar does not parse, recurses on its left, or has no rule named root");
}

lk_status lk_sampling_new(struct lk_sampling **out, const struct lk_vocab *vocab, const lk_sampler_opts *opts, lk_err *err) {
    lk_quiet();
    lk_status status = check_opts(opts, err);
    if (status != LK_OK) return status;
    struct lk_sampling *s = calloc(1, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "no memory for a sampler");
    s->opts = *opts;
    s->opts.grammar = NULL;
    if (opts->grammar && *opts->grammar) status = make_grammar(s, vocab, opts->grammar, err);
    if (status != LK_OK) {
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
    free(s);
}

static lk_status make_chain(struct lk_sampling *s, int32_t n_vocab, lk_err *err) {
    const lk_sampler_opts *o = &s->opts;
    s->candidate = malloc((size_t)n_vocab * sizeof *s->candidate);
    s->chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (!s->candidate || !s->chain) {
        if (s->chain) llama_sampler_free(s->chain);
        free(s->candidate);
        s->chain = NULL;
        s->candidate = NULL;
        return lk_fail(err, LK_E_NOMEM, "no memory to sample among %d tokens", n_vocab);
    }
    s->n_vocab = n_vocab;
    llama_sampler_chain_add(s->chain, llama_sampler_init_penalties(n_vocab, o->repeat_last_n, o->repeat_penalty, 0, 0));
    if (o->temperature <= 0) {
        llama_sampler_chain_add(s->chain, llama_sampler_init_greedy());
        return LK_OK;
    }
    llama_sampler_chain_add(s->chain, llama_sampler_init_top_k(o->top_k));
    llama_sampler_chain_add(s->chain, llama_sampler_init_top_p(o->top_p, 1));
    llama_sampler_chain_add(s->chain, llama_sampler_init_min_p(o->min_p, 1));
    llama_sampler_chain_add(s->chain, llama_sampler_init_temp(o->temperature));
    llama_sampler_chain_add(s->chain, llama_sampler_init_dist(o->seed));
    return LK_OK;
}

/* Fill candidates from the logits and let the chain choose, after the grammar if `constrained`.
 * Returns the chosen entry, NULL if there is none with a chance. */
static const llama_token_data *choose(struct lk_sampling *s, const float *logits, bool constrained) {
    for (int32_t i = 0; i < s->n_vocab; i++) s->candidate[i] = (llama_token_data){i, logits[i], 0};
    llama_token_data_array list = {s->candidate, (size_t)s->n_vocab, -1, false};
    if (constrained) {
        llama_sampler_apply(s->grammar, &list);
        size_t kept = 0; /* what the grammar forbids must not fill the places of top-k */
        for (size_t i = 0; i < list.size; i++) {
            if (list.data[i].logit > -INFINITY) list.data[kept++] = list.data[i];
        }
        if (kept == 0) return NULL;
        list.size = kept;
    }
    llama_sampler_apply(s->chain, &list);
    if (list.selected < 0 || (size_t)list.selected >= list.size) return NULL;
    const llama_token_data *chosen = &list.data[list.selected];
    return chosen->logit > -INFINITY ? chosen : NULL;
}

static bool fits_grammar(struct lk_sampling *s, llama_token tok) {
    llama_token_data one = {tok, 1.0f, 0};
    llama_token_data_array list = {&one, 1, -1, false};
    llama_sampler_apply(s->grammar, &list);
    return one.logit > -INFINITY;
}

lk_status lk_sampling_next(struct lk_sampling *s, const float *logits, int32_t n_vocab, int32_t *tok, lk_err *err) {
    if (n_vocab < 1 || (s->n_vocab && s->n_vocab != n_vocab)) return lk_fail(err, LK_E_ARG, "logits of %d tokens, expected %d", n_vocab, s->n_vocab);
    for (int32_t i = 0; i < n_vocab; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY) return lk_fail(err, LK_E_FORMAT, "the logit of token %d is not finite", i);
    }
    if (!s->chain) {
        lk_status status = make_chain(s, n_vocab, err);
        if (status != LK_OK) return status;
    }
    /* Testing the whole vocabulary against a grammar is slow, and most choices fit: choose first. */
    const llama_token_data *chosen = choose(s, logits, false);
    if (s->grammar && (!chosen || !fits_grammar(s, chosen->id))) chosen = choose(s, logits, true);
    if (!chosen) {
        return lk_fail(err, LK_E_FORMAT, s->grammar ? "no token fits the grammar here" : "no token has a chance: all logits are minus infinity");
    }
    llama_token id = chosen->id;
    llama_sampler_accept(s->chain, id);
    if (s->grammar) llama_sampler_accept(s->grammar, id);
    *tok = id;
    return LK_OK;
}
