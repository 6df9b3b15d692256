/* What of a pass happens on devices: attention, scores, aging. */
#include "engine/device_rows.h"

#include "attention/device_call.h"
#include "attention/latents.h"
#include "cache/move_command.h"
#include "engine/absorb_device.h"
#include "engine/pass.h"
#include "engine/pass_attn.h"
#include "engine/session_state.h"
#include "recipe/recipe_levels.h"

#include <string.h>

static float *address(uint64_t at) { return (float *)(uintptr_t)at; }

/* ---- choosing ---- */

lk_status lk_device_rows_open(struct lk_session *s, const char *name, uint64_t limit, lk_err *err) {
    s->rows.ledger.limit = limit;
    s->rows.ledger.common = &s->model->device_ledger;
    s->rows.device = s->model->cache_device;
    return name ? lk_model_device(s->model, name, &s->rows.device, err) : LK_OK;
}

/* Add what the levels of K or V of a layer need. */
static void add_needs(const struct lk_kv *kv, struct lk_device_needs *needs) {
    needs->divided |= lk_kv_is_divided(kv) || kv->is_elsewhere;
    needs->evicts |= kv->evict != NULL;
    needs->scores |= kv->evict && kv->evict->adds_scores;
    for (int i = 0; i < kv->n_level; i++) {
        const struct lk_level *level = &kv->level[i];
        const struct lk_codec *codec = &kv->rule[i].codec;
        needs->coding[kv->side] |= 1u << codec->coding;
        needs->mean |= codec->coding == LK_ROT && codec->mean;
        needs->sigma |= codec->sigma;
        needs->trellis |= codec->coding == LK_ROT && codec->trellis;
        needs->shift |= kv->rule[i].shift;
        needs->latents_pre |= level->rope != NULL;
        needs->latents_post |= level->basis && !level->rope;
        if (level->basis && level->d_part > needs->d_latent) needs->d_latent = level->d_part;
    }
}

static void raise_to(int *most, int n) {
    if (n > *most) *most = n;
}

/* Add the shared memory that a layer's rows need. */
static void add_room(const struct lk_kv kv[2], struct lk_device_needs *needs) {
    bool latents = false;
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < kv[side].n_level; i++) latents |= kv[side].level[i].basis != NULL;
    for (int side = 0; side < 2; side++) {
        struct lk_move_room room = lk_move_room(&kv[side]);
        raise_to(&needs->move_bytes, room.move);
        if (latents) raise_to(&needs->restored_bytes, room.tile);
    }
    if (latents) raise_to(&needs->restored_head, kv[LK_V].d_head);
}

/* Why a layer's rows cannot be described by commands; static. */
static const char *refuses_commands(const struct lk_session *s, int layer) {
    const struct lk_hparams *hp = &s->model->net->hp;
    const struct lk_kv *kv = s->cache->kv[layer];
    struct lk_attn attn = {.k = &kv[LK_K],
                           .v = &kv[LK_V],
                           .d_head = kv[LK_V].d_head,
                           .d_rope = hp->d_rope,
                           .read = s->recipe->read,
                           .alibi_max_bias = hp->alibi_max_bias};
    if (s->rows.device->uses_host) return NULL;
    const char *reason = lk_attn_device_refuses(&attn);
    for (int side = 0; side < 2 && !reason; side++) reason = lk_move_refused(&kv[side]);
    return reason;
}

lk_status lk_device_rows_check(const struct lk_session *s, lk_err *err) {
    const struct lk_net *net = s->model->net;
    const struct lk_hparams *hp = &net->hp;
    int n_kv = hp->n_head_kv;
    if (!s->rows.device) return LK_OK;
    if (hp->n_head_kv_swa && hp->n_head_kv_swa < n_kv) n_kv = hp->n_head_kv_swa;
    struct lk_device_needs needs = {.d_head = hp->d_head,
                                    .d_head_swa = hp->d_head_swa,
                                    .d_rope = hp->d_rope,
                                    .group = hp->n_head / n_kv,
                                    .absorbs = s->recipe->absorbs,
                                    .reads_share = s->recipe->read > 0 && s->recipe->read < 1,
                                    .divided = !lk_net_has_all(net) || s->model->peers,
                                    .alibi = hp->alibi_max_bias > 0,
                                    .softcap = hp->attn_softcap > 0};
    for (int layer = 0; layer < hp->n_layer; layer++)
        needs.sinks |= net->layer[layer].attn_sinks != NULL;
    for (int k = 0; k < lk_cache_n_kv(s->cache); k++) add_needs(lk_cache_kv(s->cache, k), &needs);
    for (int i = 0; i < s->cache->shape.n_layer; i++) add_room(s->cache->kv[i], &needs);
    const char *reason = lk_device_refuses(s->rows.device, &needs);
    for (int layer = 0; layer < s->cache->shape.n_layer && !reason; layer++)
        reason = refuses_commands(s, layer);
    if (!reason) return LK_OK;
    return lk_fail(err, LK_E_UNSUPPORTED, "the device %s cannot hold this session's cache: %s",
                   s->rows.device->name, reason);
}

/* ---- memory ---- */

static void free_buffer(struct lk_session_rows *rows, struct lk_device_buffer *buffer) {
    size_t size = buffer->n * sizeof(float);
    if (!buffer->at) return;
    rows->device->call->free(rows->device, buffer->at, size);
    lk_ledger_remove(&rows->ledger, LK_FOR_SCRATCH, size);
    *buffer = (struct lk_device_buffer){0};
}

/* Its contents are lost if it grows. */
static bool grow_buffer(struct lk_session_rows *rows, struct lk_device_buffer *buffer, size_t n) {
    size_t size = n * sizeof(float);
    if (n <= buffer->n) return true;
    free_buffer(rows, buffer);
    if (!lk_ledger_add(&rows->ledger, LK_FOR_SCRATCH, size)) return false;
    if (rows->device->call->alloc(rows->device, size, &buffer->at, NULL)) {
        lk_ledger_remove(&rows->ledger, LK_FOR_SCRATCH, size);
        return false;
    }
    buffer->n = n;
    return true;
}

void lk_device_rows_free(struct lk_session *s) {
    struct lk_session_rows *rows = &s->rows;
    if (!rows->device) return;
    free_buffer(rows, &rows->q);
    free_buffer(rows, &rows->partial);
    free_buffer(rows, &rows->scores);
    for (int i = 0; i < rows->n_packet; i++) {
        free_buffer(rows, &rows->packet[i].there);
        lk_release(&s->ledger, LK_FOR_SCRATCH, rows->packet[i].source, rows->packet[i].cap);
    }
    lk_release(&s->ledger, LK_FOR_SCRATCH, rows->packet,
               (size_t)rows->n_packet * sizeof *rows->packet);
    lk_release(&s->ledger, LK_FOR_SCRATCH, rows->making, rows->making_bytes);
    lk_release(&s->ledger, LK_FOR_SCRATCH, rows->command, rows->n_command * sizeof *rows->command);
    lk_release(&s->ledger, LK_FOR_SCRATCH, rows->weigh, rows->n_weigh * sizeof *rows->weigh);
    lk_release(&s->ledger, LK_FOR_SCRATCH, rows->shifted, rows->n_shifted * sizeof *rows->shifted);
    lk_release(&s->ledger, LK_FOR_SCRATCH, rows->added, rows->n_added * sizeof *rows->added);
}

bool lk_device_needs_scores(const struct lk_session *s) {
    for (int layer = 0; layer < s->cache->shape.n_layer; layer++)
        if (s->cache->evict[layer].adds_scores) return true;
    return false;
}

/* Floats of the scores of a layer's rows, in any layer: after n_tok more tokens, and of all rows
 * that the cache has reserved. */
static size_t score_floats(const struct lk_cache *cache, int n_tok, size_t *reserved) {
    size_t max = 0;
    for (int layer = 0; layer < cache->shape.n_layer; layer++) {
        const struct lk_evict *evict = &cache->evict[layer];
        if (!evict->adds_scores) continue;
        size_t n = (size_t)(evict->n + n_tok) * evict->n_head,
               cap = (size_t)evict->cap_score * evict->n_head;
        if (n > max) max = n;
        if (*reserved < max) *reserved = max;
        if (*reserved < cap) *reserved = cap;
    }
    return max;
}

bool lk_device_reserve_scores(struct lk_session *s, int n_tok) {
    struct lk_session_rows *rows = &s->rows;
    struct lk_device *device = rows->device;
    size_t n_layer = device && device->uses_host ? 1 : (size_t)s->cache->shape.n_layer, n = 0;
    rows->score_stride = score_floats(s->cache, n_tok, &n);
    n *= n_layer;
    if (!device || n == 0) return true;
    if (!grow_buffer(rows, &rows->scores, n)) return false;
    if (device->uses_host || n <= rows->n_added) return true;
    lk_release(&s->ledger, LK_FOR_SCRATCH, rows->added, rows->n_added * sizeof *rows->added);
    rows->added = lk_alloc(&s->ledger, LK_FOR_SCRATCH, n * sizeof *rows->added);
    rows->n_added = rows->added ? n : 0;
    return rows->added;
}

/* Forget what an earlier pass has added to scores. */
static bool clear_scores(struct lk_session *s) {
    struct lk_device *device = s->rows.device;
    size_t size = (size_t)s->cache->shape.n_layer * s->rows.score_stride * sizeof(float);
    if (size == 0 || device->uses_host) return true;
    return !device->call->clear(device, s->rows.scores.at, size, NULL);
}

lk_status lk_device_rows_reserve(const struct lk_seq *seq, size_t n_partial, lk_err *err) {
    struct lk_session *s = seq->session;
    const struct lk_hparams *hp = &s->model->net->hp;
    struct lk_session_rows *rows = &s->rows;
    int d = hp->d_head + hp->d_rope;
    if (hp->d_head_swa > d) d = hp->d_head_swa;
    size_t n_q = (size_t)seq->n_tok * hp->n_head * d;
    if (grow_buffer(rows, &rows->q, 2 * n_q) && /* 2: rotated back, too */
        grow_buffer(rows, &rows->partial, n_partial) && lk_device_reserve_scores(s, seq->n_tok) &&
        clear_scores(s))
        return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "out of memory of %s for the attention of %d tokens",
                   rows->device->name, seq->n_tok);
}

/* ---- attention ---- */

int lk_device_ranges(const struct lk_seq *seq, const struct lk_attn *attn) {
    return seq->session->rows.device->uses_host ? lk_attn_ranges(attn, attn->k, attn->v)
                                                : lk_attn_device_ranges(attn);
}

size_t lk_device_partial_floats(const struct lk_session *s, int n_tok) {
    const struct lk_hparams *hp = &s->model->net->hp;
    int d = hp->d_head_swa > hp->d_head ? hp->d_head_swa : hp->d_head, n_range = 1;
    if (!s->rows.device || s->rows.device->uses_host) return 0;
    for (int layer = 0; layer < s->cache->shape.n_layer; layer++) {
        const struct lk_kv *kv = s->cache->kv[layer];
        struct lk_attn attn = {.k = &kv[LK_K], .v = &kv[LK_V]};
        if (lk_attn_device_ranges(&attn) > n_range) n_range = lk_attn_device_ranges(&attn);
    }
    if (s->absorb) n_range++;
    return (size_t)n_range * n_tok * hp->n_head * (d + LK_ATTN_SUMS);
}

/* Does a sequence attend to sums on the device? */
static bool sums_there(const struct lk_seq *seq) { return seq->absorb && seq->absorb->there; }

/* Let a call have its partials on the device, after the sums' partials. */
static void set_partials(const struct lk_seq *seq, struct lk_attn *call) {
    call->partial = address(seq->session->rows.partial.at);
    call->extra_partial = NULL;
    if (!sums_there(seq)) return;
    call->extra_partial = call->partial;
    call->partial += (size_t)call->n_tok * call->n_head * (call->d_head + LK_ATTN_SUMS);
}

/* The call with operands on the device. */
static struct lk_attn device_call(const struct lk_seq *seq, const struct lk_attn *attn) {
    struct lk_attn call = *attn;
    call.q = address(seq->session->rows.q.at);
    set_partials(seq, &call);
    return call;
}

static size_t query_bytes(const struct lk_attn *attn) {
    return (size_t)attn->n_tok * attn->n_head * (attn->d_head + attn->d_rope) * sizeof *attn->q;
}

/* ---- commands: a call of more than LK_DEVICE_TOKENS tokens is several, and so are its ranges ----
 */

static int count_commands(const struct lk_attn *attn) {
    return lk_attn_device_ranges(attn) * ((attn->n_tok + LK_DEVICE_TOKENS - 1) / LK_DEVICE_TOKENS);
}

/* Piece `i` of a call. */
static struct lk_device_piece piece_of(const struct lk_attn *attn, int i) {
    int n_range = lk_attn_device_ranges(attn), token = i / n_range * LK_DEVICE_TOKENS,
        n = attn->n_tok - token;
    return (struct lk_device_piece){i % n_range, token,
                                    n < LK_DEVICE_TOKENS ? n : LK_DEVICE_TOKENS};
}

/* The layer of a call, and its packet. */
static int layer_of(const struct lk_session *s, const struct lk_attn *call) {
    return (int)((call->k - &s->cache->kv[0][LK_K]) / 2);
}
static struct lk_layer_packet *packet_of(const struct lk_session *s, const struct lk_attn *call) {
    return &s->rows.packet[layer_of(s, call)];
}

/* Does a piece read what other pieces of the call leave? */
static bool is_late(const struct lk_attn *call, const struct lk_device_piece *piece) {
    return call->out && piece->range > 0 && piece->range == lk_attn_device_ranges(call) - 1;
}

/* The commands of a call, whose packet is on the device: the late ones or the others. Returns how
 * many there are. */
static size_t describe(const struct lk_session *s, const struct lk_attn *call, bool late,
                       struct lk_device_attend *command) {
    const struct lk_attn_packet *packet = &packet_of(s, call)->parts;
    size_t n_out = 0;
    for (int i = 0, n = count_commands(call); i < n; i++) {
        struct lk_device_piece piece = piece_of(call, i);
        if (is_late(call, &piece) != late) continue;
        lk_attn_device_call(call, &piece, packet, &command[n_out++]);
    }
    return n_out;
}

/* Replace *mem by `size` bytes, whose contents are lost. */
static bool replace_bytes(struct lk_session *s, char **mem, size_t *have, size_t size) {
    lk_release(&s->ledger, LK_FOR_SCRATCH, *mem, *have);
    *mem = lk_alloc(&s->ledger, LK_FOR_SCRATCH, size);
    *have = *mem ? size : 0;
    return *mem;
}

/* Room to make `size` bytes. */
static bool reserve_making(struct lk_session *s, size_t size) {
    struct lk_session_rows *rows = &s->rows;
    return size <= rows->making_bytes ||
           replace_bytes(s, &rows->making, &rows->making_bytes, size + size / 4);
}

static lk_status reserve_packets(struct lk_session *s) {
    int n = s->cache->shape.n_layer;
    if (s->rows.packet) return LK_OK;
    s->rows.packet = lk_alloc(&s->ledger, LK_FOR_SCRATCH, (size_t)n * sizeof *s->rows.packet);
    if (!s->rows.packet) return LK_E_NOMEM;
    s->rows.n_packet = n;
    return LK_OK;
}

/* Make a packet from p->source, and bring it to the device. It grows with the tables of blocks. */
static lk_status make_packet(struct lk_session *s, const struct lk_attn *call,
                             struct lk_layer_packet *p) {
    struct lk_session_rows *rows = &s->rows;
    size_t size = lk_attn_device_packet(call, 0, NULL, &p->parts);
    if (!reserve_making(s, size) ||
        (size > p->there.n * sizeof(float) &&
         !grow_buffer(rows, &p->there, (size + size / 4) / sizeof(float))))
        return LK_E_NOMEM;
    lk_attn_device_packet(call, p->there.at, rows->making, &p->parts);
    return rows->device->call->upload(rows->device, p->there.at, rows->making, size, NULL);
}

/* Bring the packet of a call to the device, unless the device has it. All commands of the call read
 * the same one. */
static lk_status send_packet(struct lk_session *s, const struct lk_attn *call) {
    lk_status status = reserve_packets(s);
    if (status) return status;
    struct lk_layer_packet *p = packet_of(s, call);
    size_t n = lk_attn_device_sources(call, NULL);
    if (!reserve_making(s, n)) return LK_E_NOMEM;
    lk_attn_device_sources(call, s->rows.making);
    if (n == p->n_source && memcmp(s->rows.making, p->source, n) == 0) return LK_OK;
    p->n_source = 0;
    if (n > p->cap && !replace_bytes(s, &p->source, &p->cap, n + n / 4)) return LK_E_NOMEM;
    memcpy(p->source, s->rows.making, n);
    status = make_packet(s, call, p);
    if (!status) p->n_source = n;
    return status;
}

/* Attend to rows on a device that takes commands. */
static lk_status attend_by_commands(struct lk_seq *const *seq, const struct lk_attn *call,
                                    size_t n) {
    struct lk_session *first = seq[0]->session;
    struct lk_session_rows *rows = &first->rows;
    size_t n_command = 0;
    for (size_t i = 0; i < n; i++) n_command += (size_t)count_commands(&call[i]);
    if (n_command > rows->n_command) {
        if (!lk_grow(&first->ledger, LK_FOR_SCRATCH, (void **)&rows->command,
                     rows->n_command * sizeof *rows->command, n_command * sizeof *rows->command))
            return LK_E_NOMEM;
        rows->n_command = n_command;
    }
    for (size_t i = 0; i < n; i++) {
        lk_status status = send_packet(seq[i]->session, &call[i]);
        if (status) return status;
    }
    lk_status status = LK_OK;
    for (int late = 0; late < 2 && !status; late++) {
        n_command = 0;
        for (size_t i = 0; i < n; i++)
            n_command += describe(seq[i]->session, &call[i], late, rows->command + n_command);
        if (n_command > 0)
            status = rows->device->call->attend(rows->device, rows->command, NULL, n_command, NULL);
    }
    return status;
}

/* Attend to sums on the device, before the rows: into call[i].extra_partial. */
static lk_status attend_to_sums(struct lk_seq *const *seq, const struct lk_attn *call, size_t n) {
    struct lk_absorb_call sums[LK_DEVICE_CALLS];
    lk_status status = LK_OK;
    size_t n_sums = 0;
    for (size_t i = 0; i < n && !status; i++) {
        if (!call[i].extra_partial) continue;
        if (n_sums > 0 && sums[0].absorb->sidecar != seq[i]->absorb->sidecar) {
            status = lk_absorb_attend_there(sums, n_sums);
            n_sums = 0;
        }
        sums[n_sums++] =
            (struct lk_absorb_call){.absorb = seq[i]->absorb,
                                    .layer = layer_of(seq[i]->session, &call[i]),
                                    .n_tok = call[i].n_tok,
                                    .q = (uint64_t)(uintptr_t)call[i].q,
                                    .partial = (uint64_t)(uintptr_t)call[i].extra_partial};
    }
    return status || n_sums == 0 ? status : lk_absorb_attend_there(sums, n_sums);
}

/* Scores of a call whose packet the device has from attending. */
static lk_status score_by_commands(struct lk_session *s, const struct lk_attn *call, bool last,
                                   uint64_t scores) {
    struct lk_session_rows *rows = &s->rows;
    const struct lk_attn_packet *packet = &packet_of(s, call)->parts;
    lk_status status = LK_OK;
    int start = last ? (call->n_tok - 1) / LK_DEVICE_TOKENS * LK_DEVICE_TOKENS : 0;
    for (int token = start, n; token < call->n_tok && !status; token += n) {
        n = call->n_tok - token < LK_DEVICE_TOKENS ? call->n_tok - token : LK_DEVICE_TOKENS;
        size_t n_weigh = lk_attn_device_weights(call, packet, token, n, last, scores, NULL);
        if (n_weigh > rows->n_weigh) {
            if (!lk_grow(&s->ledger, LK_FOR_SCRATCH, (void **)&rows->weigh,
                         rows->n_weigh * sizeof *rows->weigh, n_weigh * sizeof *rows->weigh))
                return LK_E_NOMEM;
            rows->n_weigh = n_weigh;
        }
        lk_attn_device_weights(call, packet, token, n, last, scores, rows->weigh);
        status =
            rows->device->call->score(rows->device, rows->weigh, n_weigh, NULL, last, scores, NULL);
    }
    return status;
}

/* Bring a call's queries to the device, and those that are rotated back. */
static lk_status send_queries(struct lk_session *s, const struct lk_attn *attn) {
    struct lk_session_rows *rows = &s->rows;
    struct lk_device *device = rows->device;
    size_t size = query_bytes(attn);
    lk_status status = device->call->upload(device, rows->q.at, attn->q, size, NULL);
    if (status || device->uses_host || !lk_attn_device_shifts(attn)) return status;
    if (size > rows->n_shifted * sizeof *rows->shifted) {
        if (!lk_grow(&s->ledger, LK_FOR_SCRATCH, (void **)&rows->shifted,
                     rows->n_shifted * sizeof *rows->shifted, size))
            return LK_E_NOMEM;
        rows->n_shifted = size / sizeof *rows->shifted;
    }
    lk_attn_shift_queries(attn, rows->shifted);
    return device->call->upload(device, rows->q.at + size, rows->shifted, size, NULL);
}

/* Bring what a call on the device has left to RAM. */
static lk_status fetch_partials(const struct lk_seq *seq, const struct lk_attn *attn,
                                const struct lk_attn *call) {
    struct lk_device *device = seq->session->rows.device;
    size_t n_row = (size_t)attn->n_tok * attn->n_head,
           joined = lk_attn_joined_floats(attn->d_head, lk_attn_partial_latents(attn)),
           sums = (uintptr_t)call->partial - (uintptr_t)call->extra_partial;
    lk_status status = LK_OK;
    if (call->extra_partial)
        status = device->call->download(device, seq->absorb->partial,
                                        (uint64_t)(uintptr_t)call->extra_partial, sums, NULL);
    if (status) return status;
    return device->call->download(device, attn->partial, (uint64_t)(uintptr_t)call->partial,
                                  (size_t)seq->n_range * n_row * joined * sizeof(float), NULL);
}

/* Attend with queries in RAM. */
static lk_status attend_from_ram(struct lk_seq *const *seq, const struct lk_attn *attn, size_t n) {
    struct lk_attn call[LK_DEVICE_CALLS] = {0};
    struct lk_device *device = seq[0]->session->rows.device;
    lk_status status = LK_OK;
    for (size_t i = 0; i < n; i++) call[i] = device_call(seq[i], &attn[i]);
    for (size_t i = 0; i < n && !status; i++) status = send_queries(seq[i]->session, &attn[i]);
    if (!status) status = attend_to_sums(seq, call, n);
    if (!status)
        status = device->uses_host ? device->call->attend(device, NULL, call, n, NULL)
                                   : attend_by_commands(seq, call, n);
    for (size_t i = 0; i < n && !status; i++) status = fetch_partials(seq[i], &attn[i], &call[i]);
    return status;
}

/* Attend with queries on the device, and leave results there; for scores, maxima and sums too. The
 * result includes partials of sums, of several ranges, and of latents, without leaving it. */
static lk_status attend_there(struct lk_seq *const *seq, const struct lk_attn *attn, size_t n) {
    struct lk_attn call[LK_DEVICE_CALLS];
    for (size_t i = 0; i < n; i++) {
        const struct lk_session *s = seq[i]->session;
        bool scored = s->cache->evict[layer_of(s, &attn[i])].adds_scores;
        call[i] = attn[i];
        set_partials(seq[i], &call[i]);
        if (!scored && !call[i].extra_partial && !lk_attn_device_joins(&attn[i]))
            call[i].partial = NULL;
    }
    lk_status status = attend_to_sums(seq, call, n);
    return status ? status : attend_by_commands(seq, call, n);
}

void lk_device_attend(struct lk_seq *const *seq, const struct lk_attn *attn, size_t n) {
    lk_status status = attn[0].out ? attend_there(seq, attn, n) : attend_from_ram(seq, attn, n);
    for (size_t i = 0; i < n && status; i++) seq[i]->failed = status;
}

/* By a device that computes on the CPU: bit for bit as in RAM. */
static lk_status score_by_host(const struct lk_seq *seq, const struct lk_attn *call, bool last) {
    struct lk_device *device = seq->session->rows.device;
    uint64_t at = seq->session->rows.scores.at;
    size_t size = (size_t)(call->k->n_tok - call->k->first) * call->n_head_kv * sizeof(float);
    lk_status status = device->call->upload(device, at, seq->attn_scores, size, NULL);
    if (!status) status = device->call->score(device, NULL, 0, call, last, at, NULL);
    return status ? status : device->call->download(device, seq->attn_scores, at, size, NULL);
}

void lk_device_score(struct lk_seq *seq, const struct lk_attn *attn, bool last) {
    struct lk_session *s = seq->session;
    struct lk_attn call = *attn;
    set_partials(seq, &call);
    if (!attn->out) call.q = address(s->rows.q.at);
    size_t before = (size_t)layer_of(s, attn) * s->rows.score_stride * sizeof(float);
    lk_status status = s->rows.device->uses_host
                           ? score_by_host(seq, &call, last)
                           : score_by_commands(s, &call, last, s->rows.scores.at + before);
    if (status) seq->failed = status;
}

/* Add what the pass has left to the scores of all layers. */
static lk_status fetch_scores(struct lk_session *s) {
    struct lk_session_rows *rows = &s->rows;
    const struct lk_cache *cache = s->cache;
    size_t size = (size_t)cache->shape.n_layer * rows->score_stride * sizeof(float);
    if (size == 0 || rows->device->uses_host) return LK_OK;
    lk_status status =
        rows->device->call->download(rows->device, rows->added, rows->scores.at, size, NULL);
    for (int layer = 0; layer < cache->shape.n_layer && !status; layer++) {
        const struct lk_evict *evict = &cache->evict[layer];
        const float *added = rows->added + (size_t)layer * rows->score_stride;
        bool last = lk_policy_needed_scores(&evict->policy) == LK_SCORES_LAST;
        size_t n = evict->adds_scores ? (size_t)evict->n * evict->n_head : 0;
        for (size_t i = 0; i < n; i++) evict->score[i] = added[i] + (last ? 0 : evict->score[i]);
    }
    return status;
}

/* ---- aging ---- */

void lk_device_age(struct lk_seq *seq, float *scratch) {
    struct lk_long_list room;
    struct lk_cache *cache = seq->session->cache;
    struct lk_moves *list = lk_moves_start_long(&room, cache, scratch);
    lk_status status = fetch_scores(seq->session);
    for (int k = 0; k < lk_cache_n_kv(cache) && !status; k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        if (kv->side == LK_V && kv->evict) continue; /* aged together with K */
        status = lk_cache_age_by(list, k / 2, kv->side, NULL);
    }
    lk_moves_run(list);
    if (cache->evict_room) cache->evict_room->take(cache->evict_room->user);
    if (status) seq->failed = status;
}

void lk_device_finish(struct lk_seq *seq, float *scratch, bool aged) {
    if (!aged) lk_device_age(seq, scratch);
    lk_status fault = lk_device_settle(seq->session, NULL);
    if (fault && !seq->failed) seq->failed = fault;
}

lk_status lk_device_settle(struct lk_session *s, lk_err *err) {
    struct lk_device *device = s->rows.device;
    if (!device) return LK_OK;
    lk_status status = device->call->sync(device, NULL);
    lk_status fault = lk_pool_take_fault(&s->cache->pool);
    if (!status) status = fault;
    if (status == LK_E_NOMEM) return lk_fail(err, status, "out of memory of %s", device->name);
    if (!status) return LK_OK;
    return lk_fail(err, LK_E_IO, "the device %s has failed; open the model again", device->name);
}

/* ---- all sequences of a pass ---- */

void lk_pass_attend_on_devices(const struct lk_layer_job *job, const struct ggml_tensor *q,
                               const struct ggml_tensor *out) {
    struct lk_seq *seq[LK_DEVICE_CALLS];
    struct lk_attn call[LK_DEVICE_CALLS];
    size_t n = 0;
    for (size_t i = 0; i < job->pass->n_seq; i++) {
        struct lk_seq *next = &job->pass->seq[i];
        if (next->failed || !lk_device_has_rows(next)) continue;
        if (n > 0 &&
            (n == LK_DEVICE_CALLS || next->session->rows.device != seq[0]->session->rows.device)) {
            lk_device_attend(seq, call, n);
            n = 0;
        }
        seq[n] = next;
        call[n++] = lk_pass_seq_attn(job, i, q, out);
    }
    if (n > 0) lk_device_attend(seq, call, n);
}
