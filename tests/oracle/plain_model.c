/* The plain forward pass. */
#include "plain_model.h"

#include "gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double plain_f16(double x) {
    if (x == 0 || !isfinite(x)) return x;
    int e = ilogb(x);
    double unit = ldexp(1, (e < -14 ? -14 : e) - 10), rounded = nearbyint(x / unit) * unit;
    return fabs(rounded) > 65504 ? copysign(INFINITY, x) : rounded;
}

/* ---- reading ---- */

static const float *find_tensor(const struct plain_model *m, const char *name) {
    struct ggml_tensor *t = ggml_get_tensor(m->ctx, name);
    return t && t->type == GGML_TYPE_F32 ? t->data : NULL;
}

static const float *find_layer_tensor(const struct plain_model *m, int layer, const char *rest,
                                      const char *kind) {
    char name[64];
    if (layer < 0)
        snprintf(name, sizeof name, "%s.%s", rest, kind);
    else
        snprintf(name, sizeof name, "blk.%d.%s.%s", layer, rest, kind);
    return find_tensor(m, name);
}

static struct plain_norm norm_of(const struct plain_model *m, int layer, const char *name) {
    return (struct plain_norm){find_layer_tensor(m, layer, name, "weight"),
                               find_layer_tensor(m, layer, name, "bias")};
}

static struct plain_matrix matrix_of(const struct plain_model *m, int layer, const char *name,
                                     int n_in, int n_out) {
    return (struct plain_matrix){find_layer_tensor(m, layer, name, "weight"),
                                 find_layer_tensor(m, layer, name, "bias"), n_in, n_out};
}

static int64_t find_key(const struct plain_model *m, const char *rest) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", m->arch, rest);
    return gguf_find_key(m->gguf, key);
}

static int read_int(const struct plain_model *m, const char *rest, int absent) {
    int64_t id = find_key(m, rest);
    return id < 0 ? absent : (int)gguf_get_val_u32(m->gguf, id);
}

static double read_float(const struct plain_model *m, const char *rest, double absent) {
    int64_t id = find_key(m, rest);
    return id < 0 ? absent : gguf_get_val_f32(m->gguf, id);
}

static bool is_arch(const struct plain_model *m, const char *arch) {
    return strcmp(m->arch, arch) == 0;
}

static bool has_layer_norms(const struct plain_model *m) {
    return is_arch(m, "falcon") || is_arch(m, "bloom") || is_arch(m, "gpt2") ||
           is_arch(m, "stablelm");
}

static bool is_gemma(const struct plain_model *m) {
    return is_arch(m, "gemma2") || is_arch(m, "gemma3");
}

/* Norms after attention and the feed-forward network. */
static bool has_post_norms(const struct plain_model *m) {
    return is_gemma(m) || is_arch(m, "olmo2");
}

/* Radians per position of pair j. YaRN (Peng et al. 2023) interpolates slow pairs only. */
static double speed_of(const struct plain_model *m, bool swa, int j) {
    double n = m->n_rot, base = swa ? m->rope_base_swa : m->rope_base;
    bool scaled = !swa || is_arch(m, "gpt-oss");
    double speed = pow(base, -2.0 * j / n), scale = scaled ? m->rope_scale : 1;
    if (m->rope_factor) speed /= m->rope_factor[j];
    if (!m->yarn || (swa && is_arch(m, "olmo2"))) return speed * scale;
    const double turn = 6.283185307179586;
    double low = floor(n * log(m->n_ctx_orig / (m->yarn_fast * turn)) / (2 * log(base))),
           high = ceil(n * log(m->n_ctx_orig / (m->yarn_slow * turn)) / (2 * log(base)));
    low = fmax(0, low);
    high = fmin(n - 1, high);
    double ramp = 1 - fmin(1, fmax(0, (j - low) / fmax(0.001, high - low)));
    return speed * scale * (1 - ramp) + speed * ramp;
}

static bool rotates_neighbors(const struct plain_model *m) {
    return is_arch(m, "llama") || is_arch(m, "smollm3") || is_arch(m, "mistral3") ||
           is_arch(m, "granite");
}

static void read_rope(struct plain_model *m) {
    if (m->alibi || is_arch(m, "gpt2")) return;
    int64_t type = find_key(m, "rope.scaling.type");
    const char *scaling = type < 0 ? "none" : gguf_get_val_str(m->gguf, type);
    double factor = read_float(m, "rope.scaling.factor", 1);
    m->rope = rotates_neighbors(m) ? 1 : 2;
    m->rope_period = is_arch(m, "smollm3") ? 4 : 0;
    m->rope_base = m->rope_base_swa = read_float(m, "rope.freq_base", 10000);
    if (is_arch(m, "gemma3")) m->rope_base_swa = 10000;
    m->rope_scale = 1 / factor;
    double attn_factor = read_float(m, "rope.scaling.attn_factor", 1);
    m->n_ctx_orig = read_int(m, "rope.scaling.original_context_length", m->n_ctx);
    m->rope_factor = find_tensor(m, "rope_freqs.weight");
    if (!m->rope_factor && m->n_ctx > m->n_ctx_orig)
        m->rope_factor = find_tensor(m, "rope_factors_long.weight");
    m->yarn = strcmp(scaling, "yarn") == 0;
    m->yarn_fast = read_float(m, "rope.scaling.yarn_beta_fast", 32);
    m->yarn_slow = read_float(m, "rope.scaling.yarn_beta_slow", 1);
    double longer = m->yarn ? 0.1 * log(factor) : 0,
           log_mul = read_float(m, "rope.scaling.yarn_log_multiplier", 0);
    m->rope_magnitude[0] = m->rope_magnitude[1] =
        attn_factor * (1 + longer) / (1 + longer * log_mul);
    if (is_arch(m, "olmo2")) m->rope_magnitude[1] = 1;
    for (int swa = 0; swa < 2; swa++) {
        m->speed[swa] = malloc((size_t)m->n_rot / 2 * sizeof *m->speed[swa]);
        for (int j = 0; j < m->n_rot / 2; j++) m->speed[swa][j] = speed_of(m, swa, j);
    }
}

static void read_layer(struct plain_model *m, int i) {
    struct plain_layer *l = &m->layer[i];
    int n_q = m->n_head * m->d_head, n_kv = m->n_head_kv * m->d_head;
    l->attn_norm = norm_of(m, i, "attn_norm");
    l->attn_norm_2 = norm_of(m, i, "attn_norm_2");
    l->ffn_norm = norm_of(m, i, is_arch(m, "gpt-oss") ? "post_attention_norm" : "ffn_norm");
    l->sinks = find_layer_tensor(m, i, "attn_sinks", "weight");
    l->attn_post_norm = norm_of(m, i, "post_attention_norm");
    l->ffn_post_norm = norm_of(m, i, "post_ffw_norm");
    l->q_norm = norm_of(m, i, "attn_q_norm");
    l->k_norm = norm_of(m, i, "attn_k_norm");
    l->qkv = matrix_of(m, i, "attn_qkv", m->n_embd, n_q + 2 * n_kv);
    l->q = matrix_of(m, i, "attn_q", m->n_embd, n_q);
    l->k = matrix_of(m, i, "attn_k", m->n_embd, n_kv);
    l->v = matrix_of(m, i, "attn_v", m->n_embd, n_kv);
    l->o = matrix_of(m, i, "attn_output", n_q, m->n_embd);
    bool experts = m->n_expert > 0, joined = is_arch(m, "phi3");
    l->router = matrix_of(m, i, "ffn_gate_inp", m->n_embd, m->n_expert);
    l->gate = matrix_of(m, i,
                        experts  ? "ffn_gate_exps"
                        : joined ? "ffn_up"
                                 : "ffn_gate",
                        m->n_embd, m->n_ff);
    l->up = matrix_of(m, i, experts ? "ffn_up_exps" : "ffn_up", m->n_embd, m->n_ff);
    if (joined) l->up.w += (size_t)m->n_ff * m->n_embd; /* after the rows of the gate */
    l->down = matrix_of(m, i, experts ? "ffn_down_exps" : "ffn_down", m->n_ff, m->n_embd);
}

bool plain_model_open(struct plain_model *m, const char *path) {
    *m = (struct plain_model){.embd_scale = 1};
    m->gguf = gguf_init_from_file(path, (struct gguf_init_params){.ctx = &m->ctx});
    if (!m->gguf) return false;
    int64_t arch = gguf_find_key(m->gguf, "general.architecture");
    if (arch < 0) return false;
    snprintf(m->arch, sizeof m->arch, "%s", gguf_get_val_str(m->gguf, arch));
    m->n_layer = read_int(m, "block_count", 0);
    m->n_embd = read_int(m, "embedding_length", 0);
    m->n_head = read_int(m, "attention.head_count", 0);
    m->n_head_kv = read_int(m, "attention.head_count_kv", m->n_head);
    m->d_head = read_int(m, "attention.key_length", 0);
    m->n_expert = read_int(m, "expert_count", 0);
    m->n_expert_used = read_int(m, "expert_used_count", 0);
    m->n_ff = read_int(m, "feed_forward_length", 0);
    m->n_ff = read_int(m, "expert_feed_forward_length", m->n_ff);
    m->n_vocab = read_int(m, "vocab_size", 0);
    m->n_ctx = read_int(m, "context_length", 0);
    m->n_rot = read_int(m, "rope.dimension_count", m->d_head);
    m->n_swa =
        has_post_norms(m) || is_arch(m, "gpt-oss") ? read_int(m, "attention.sliding_window", 0) : 0;
    m->swa_period = is_arch(m, "gemma2") || is_arch(m, "gpt-oss") ? 2
                    : is_arch(m, "gemma3")                        ? 6
                                                                  : 4;
    m->embd_scale = read_float(m, "embedding_scale", 1);
    m->residual_scale = read_float(m, "residual_scale", 1);
    m->attn_scale = read_float(m, "attention.scale", 1 / sqrt(m->d_head));
    m->attn_temp = read_float(m, "attention.temperature_scale", 0);
    m->logit_scale = 1 / read_float(m, "logit_scale", 1);
    m->layer_norms = has_layer_norms(m);
    m->softcap = read_float(m, "final_logit_softcapping", 0);
    m->eps = read_float(
        m, has_layer_norms(m) ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
        0);
    m->alibi = is_arch(m, "bloom") || is_arch(m, "refact");
    m->attn_softcap = read_float(m, "attn_logit_softcapping", 0);
    if (is_gemma(m)) m->embd_scale = sqrt(m->n_embd);
    read_rope(m);
    m->tok_embd = find_tensor(m, "token_embd.weight");
    m->pos_embd = find_tensor(m, "position_embd.weight");
    m->tok_norm = norm_of(m, -1, "token_embd_norm");
    m->output_norm = norm_of(m, -1, "output_norm");
    m->output = matrix_of(m, -1, "output", m->n_embd, m->n_vocab);
    if (!m->output.w) m->output.w = m->tok_embd;
    m->layer = calloc((size_t)m->n_layer, sizeof *m->layer);
    for (int i = 0; i < m->n_layer; i++) read_layer(m, i);
    return m->tok_embd && m->n_layer > 0 && m->d_head > 0 && m->n_vocab > 0;
}

void plain_model_close(struct plain_model *m) {
    free(m->layer);
    for (int swa = 0; swa < 2; swa++) free(m->speed[swa]);
    if (m->gguf) gguf_free(m->gguf);
    if (m->ctx) ggml_free(m->ctx);
    *m = (struct plain_model){0};
}

/* ---- parts of a layer ---- */

static void multiply(const struct plain_matrix *a, const double *x, double *y) {
    enum { LANES = 8 };
    for (int o = 0; o < a->n_out; o++) {
        const float *w = a->w + (size_t)o * a->n_in;
        double lane[LANES] = {0}, sum = a->b ? a->b[o] : 0;
        int i = 0;
        for (; i + LANES <= a->n_in; i += LANES)
            for (int j = 0; j < LANES; j++) lane[j] += w[i + j] * x[i + j];
        for (; i < a->n_in; i++) sum += w[i] * x[i];
        for (int j = 0; j < LANES; j++) sum += lane[j];
        y[o] = sum;
    }
}

/* RMS norm, or the layer norm of models that have such norms. */
static void normalize(const struct plain_model *m, const struct plain_norm *norm, int n,
                      const double *x, double *y) {
    double mean = 0, square = 0, eps = m->eps;
    for (int i = 0; m->layer_norms && i < n; i++) mean += x[i] / n;
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / n;
    for (int i = 0; i < n; i++) {
        y[i] = (x[i] - mean) / sqrt(square + eps) * norm->w[i];
        if (norm->b) y[i] += norm->b[i];
    }
}

/* ggml reads GELU from a table of half precision numbers. */
static double gelu(double x) {
    if (x <= -10) return 0;
    if (x >= 10) return x;
    x = plain_f16(x);
    return plain_f16(x / 2 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))));
}

static double clamped_swiglu(double gate, double up) {
    gate = fmin(gate, 7);
    return gate / (1 + exp(-1.702 * gate)) * (fmax(-7, fmin(up, 7)) + 1);
}

static double silu(double x) { return x / (1 + exp(-x)); }

bool plain_is_swa(const struct plain_model *m, int layer) {
    return m->n_swa > 0 && layer % m->swa_period < m->swa_period - 1;
}

double plain_slope(const struct plain_model *m, int head) {
    if (!m->alibi) return 0;
    int whole = 1;
    while (whole * 2 <= m->n_head) whole *= 2;
    return head < whole ? pow(2, -8.0 / whole * (head + 1))
                        : pow(2, -4.0 / whole * (2 * (head - whole) + 1));
}

void plain_rotate(const struct plain_model *m, int layer, double pos, double scale, double *row) {
    int n_pair = m->n_rot / 2;
    if (!m->rope || (m->rope_period && layer % m->rope_period == m->rope_period - 1)) return;
    for (int j = 0; j < n_pair; j++) {
        int a = m->rope == 1 ? 2 * j : j, b = m->rope == 1 ? 2 * j + 1 : j + n_pair;
        double angle = pos * m->speed[plain_is_swa(m, layer)][j], x = row[a], y = row[b];
        row[a] = scale * (x * cos(angle) - y * sin(angle));
        row[b] = scale * (x * sin(angle) + y * cos(angle));
    }
}

void plain_embed(const struct plain_model *m, int tok, int pos, double *x) {
    for (int i = 0; i < m->n_embd; i++) {
        x[i] = m->tok_embd[(size_t)tok * m->n_embd + i] * m->embd_scale;
        if (m->pos_embd) x[i] += m->pos_embd[(size_t)pos * m->n_embd + i];
    }
    if (m->tok_norm.w) normalize(m, &m->tok_norm, m->n_embd, x, x);
}

static void norm_and_rotate(const struct plain_model *m, int layer, const struct plain_norm *norm,
                            int pos, int n_head, double *x) {
    bool whole = is_arch(m, "olmo2"), own = is_arch(m, "stablelm"); /* weights of each head */
    if (whole) normalize(m, norm, n_head * m->d_head, x, x);
    for (int h = 0; h < n_head; h++, x += m->d_head) {
        struct plain_norm of_head = {norm->w && own ? norm->w + h * m->d_head : norm->w, NULL};
        if (norm->w && !whole) normalize(m, &of_head, m->d_head, x, x);
        plain_rotate(m, layer, pos, m->rope_magnitude[plain_is_swa(m, layer)], x);
    }
}

void plain_qkv(const struct plain_model *m, int layer, const double *x, int pos, double *q,
               double *k, double *v) {
    const struct plain_layer *l = &m->layer[layer];
    int n_q = m->n_head * m->d_head, n_kv = m->n_head_kv * m->d_head;
    double in[m->n_embd], all[n_q + 2 * n_kv];
    const struct plain_norm *norm = l->attn_norm_2.w ? &l->attn_norm_2 : &l->attn_norm;
    memcpy(in, x, sizeof in);
    if (norm->w) normalize(m, norm, m->n_embd, x, in);
    if (l->qkv.w) {
        multiply(&l->qkv, in, all);
        memcpy(q, all, (size_t)n_q * sizeof *q);
        memcpy(k, all + n_q, (size_t)n_kv * sizeof *k);
        memcpy(v, all + n_q + n_kv, (size_t)n_kv * sizeof *v);
    } else {
        multiply(&l->q, in, q);
        multiply(&l->k, in, k);
        multiply(&l->v, in, v);
    }
    norm_and_rotate(m, layer, &l->q_norm, pos, m->n_head, q);
    norm_and_rotate(m, layer, &l->k_norm, pos, m->n_head_kv, k);
    double temperature = 1 + m->attn_temp * log(1 + floor((double)pos / m->n_ctx_orig));
    for (int i = 0; m->attn_temp > 0 && i < n_q; i++) q[i] *= temperature;
}

/* The matrix of an expert. */
static struct plain_matrix of_expert(const struct plain_matrix *first, int expert) {
    struct plain_matrix own = *first;
    own.w += (size_t)expert * own.n_in * own.n_out;
    if (own.b) own.b += (size_t)expert * own.n_out;
    return own;
}

/* y = the feed-forward network of `in`, or that of one expert. */
static void compute_ffn(const struct plain_model *m, const struct plain_layer *l, int expert,
                        const double *in, double *y) {
    double act[m->n_ff], gate[m->n_ff];
    struct plain_matrix up = of_expert(&l->up, expert), down = of_expert(&l->down, expert);
    multiply(&up, in, act);
    if (l->gate.w) {
        struct plain_matrix of_gate = of_expert(&l->gate, expert);
        multiply(&of_gate, in, gate);
    }
    for (int i = 0; i < m->n_ff; i++) {
        if (is_arch(m, "gpt-oss"))
            act[i] = clamped_swiglu(gate[i], act[i]);
        else if (!l->gate.w)
            act[i] = gelu(act[i]);
        else
            act[i] *= is_gemma(m) ? gelu(gate[i]) : silu(gate[i]);
    }
    multiply(&down, act, y);
}

/* y = the mixture of the experts with the largest probabilities, scaled to add up to 1. */
static void mix_experts(const struct plain_model *m, const struct plain_layer *l, const double *in,
                        double *y) {
    double logit[m->n_expert], of_expert[m->n_embd], sum = 0;
    int used[m->n_expert_used];
    multiply(&l->router, in, logit);
    for (int i = 0; i < m->n_expert_used; i++) {
        used[i] = -1;
        for (int e = 0; e < m->n_expert; e++) {
            bool taken = false;
            for (int k = 0; k < i; k++) taken |= used[k] == e;
            if (!taken && (used[i] < 0 || logit[e] > logit[used[i]])) used[i] = e;
        }
        sum += exp(logit[used[i]]);
    }
    memset(y, 0, (size_t)m->n_embd * sizeof *y);
    for (int i = 0; i < m->n_expert_used; i++) {
        compute_ffn(m, l, used[i], in, of_expert);
        for (int c = 0; c < m->n_embd; c++) y[c] += exp(logit[used[i]]) / sum * of_expert[c];
    }
}

/* out += the feed-forward network of `in`. */
static void add_ffn(const struct plain_model *m, int layer, const double *in,
                    const struct plain_norm *post, double *out) {
    const struct plain_layer *l = &m->layer[layer];
    double y[m->n_embd];
    if (m->n_expert > 0)
        mix_experts(m, l, in, y);
    else
        compute_ffn(m, l, 0, in, y);
    if (post) normalize(m, post, m->n_embd, y, y);
    for (int i = 0; i < m->n_embd; i++) out[i] += m->residual_scale * y[i];
}

void plain_post(const struct plain_model *m, int layer, const double *attn, double *x) {
    const struct plain_layer *l = &m->layer[layer];
    bool parallel = is_arch(m, "falcon") || (is_arch(m, "stablelm") && !l->ffn_norm.w);
    double y[m->n_embd], in[m->n_embd];
    multiply(&l->o, attn, y);
    if (has_post_norms(m)) normalize(m, &l->attn_post_norm, m->n_embd, y, y);
    if (parallel) normalize(m, &l->attn_norm, m->n_embd, x, in);
    for (int i = 0; i < m->n_embd; i++) x[i] += m->residual_scale * y[i];
    if (!parallel) memcpy(in, x, sizeof in);
    if (!parallel && l->ffn_norm.w) normalize(m, &l->ffn_norm, m->n_embd, x, in);
    add_ffn(m, layer, in, has_post_norms(m) ? &l->ffn_post_norm : NULL, x);
}

void plain_logits(const struct plain_model *m, const double *x, double *out) {
    double in[m->n_embd];
    normalize(m, &m->output_norm, m->n_embd, x, in);
    multiply(&m->output, in, out);
    for (int i = 0; i < m->n_vocab; i++) out[i] *= m->logit_scale;
    for (int i = 0; m->softcap > 0 && i < m->n_vocab; i++)
        out[i] = m->softcap * tanh(out[i] / m->softcap);
}
