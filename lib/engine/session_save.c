/* Saving sessions to files and loading them. */
#include "engine/session_save.h"

#include "base/atomic_file.h"
#include "cache/cache_check.h"
#include "engine/checkpoint.h"
#include "engine/prefill_save.h"
#include "engine/sampler.h"
#include "engine/session_state.h"
#include "model/gguf_read.h"
#include "token/sampling.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAX_RECIPE = 1 << 14 /* bytes */ };

/* The model's fingerprint. Keys that LongRoPE rotated for short contexts are of no use in longer
 * ones. */
static uint64_t model_id(const struct lk_model *model) {
    return model->net->fingerprint ^ (uint64_t)model->net->hp.n_ctx_rope;
}

/* The fingerprint of the sidecar that the session's rows, latents and states depend on; 0: none. */
static uint64_t used_sidecar(const struct lk_session *s) {
    uint64_t bases = s->model->adapter ? s->model->sidecar->fingerprint : 0,
             networks = s->absorb ? s->absorb->sidecar : 0;
    for (int k = 0; k < lk_cache_n_kv(s->cache); k++)
        for (int i = 0; i < lk_cache_kv(s->cache, k)->n_level; i++)
            if (lk_cache_kv(s->cache, k)->level[i].basis) bases = s->model->sidecar->fingerprint;
    return bases == networks ? bases : bases ^ networks;
}

/* ---- saving ---- */

/* The section that is being written. */
struct section {
    FILE *file;
    uint64_t size;
    XXH3_state_t hash;
};

static bool write_to_section(void *user, const void *data, size_t n) {
    struct section *section = user;
    section->size += n;
    XXH3_64bits_update(&section->hash, data, n);
    return fwrite(data, 1, n, section->file) == n;
}

/* The states of recurrent layers, then those of evicted rows. */
static bool write_states(const struct lk_session *s, struct lk_saving *saving, lk_err *err) {
    if (lk_recurrent_save(s, saving, err)) return false;
    if (saving->ok && saving->writer && s->absorb)
        saving->ok = lk_absorb_write(s->absorb, saving->writer);
    return saving->ok;
}

/* Counts or rows of the cache; a suspended prefill has only layers that are done. */
static bool write_cache(const struct lk_session *s, bool counts, struct lk_saving *saving) {
    struct lk_ledger *ledger = &s->model->ledger;
    size_t n = (size_t)s->cache->shape.n_layer * sizeof *s->cache->kv;
    struct lk_cache view = *s->cache;
    struct lk_kv(*kv)[2] = s->suspended ? lk_alloc(ledger, LK_FOR_OTHER, n) : NULL;
    if (s->suspended && !kv) return false;
    if (kv) lk_prefill_view(s, &view, kv);
    bool ok =
        counts ? lk_cache_write_counts(&view, saving->writer) : lk_cache_write_rows(&view, saving);
    if (kv) lk_release(ledger, LK_FOR_OTHER, kv, n);
    return ok;
}

/* Of the last token; of a suspended prefill after its last chunk. */
static const float *logits_of(const struct lk_session *s) {
    return lk_prefill_has_logits(s) ? s->logits : lk_session_logits(s, -1);
}

static bool write_section(const struct lk_session *s, const lk_sampler *sampler,
                          enum lk_section which, struct lk_saving *saving, lk_err *err) {
    const struct lk_writer *writer = saving->writer;
    const float *logits = logits_of(s);
    size_t n_suspended = lk_session_suspended(s, NULL),
           n_tok = n_suspended ? n_suspended : s->n_tok;
    switch (which) {
    case LK_SECTION_RECIPE:
        return writer->put(writer->user, lk_recipe_text(s->recipe),
                           strlen(lk_recipe_text(s->recipe)));
    case LK_SECTION_TOKENS: return writer->put(writer->user, s->tok, n_tok * sizeof *s->tok);
    case LK_SECTION_LOGITS:
        return !logits ||
               writer->put(writer->user, logits, s->model->net->hp.n_vocab * sizeof *logits);
    case LK_SECTION_SAMPLER: return !sampler || lk_sampling_save(sampler->sampling, writer);
    case LK_SECTION_STATES: return write_states(s, saving, err);
    case LK_SECTION_COUNTS: return write_cache(s, true, saving);
    case LK_SECTION_ROWS: return write_cache(s, false, saving);
    case LK_SECTION_CHECKPOINTS: return lk_checkpoints_write(s, saving);
    case LK_SECTION_PREFILL: return !s->suspended || lk_prefill_write(s, writer);
    case LK_N_SECTION: break;
    }
    return false;
}

/* Other processes send their states, rows and checkpoints if all is well up to there. False: *err
 * has the reason, unless it is the file. */
static bool write_all(const struct lk_session *s, const lk_sampler *sampler, FILE *file,
                      lk_err *err) {
    bool others_send = false;
    struct lk_session_header header = {.magic = LK_SESSION_MAGIC,
                                       .version = LK_SESSION_VERSION,
                                       .order = LK_SESSION_ORDER,
                                       .model = model_id(s->model),
                                       .sidecar = used_sidecar(s),
                                       .size = sizeof header};
    bool ok = fwrite(&header, sizeof header, 1, file) == 1; /* written again when it is complete */
    for (int i = 0; i < LK_N_SECTION; i++) {
        struct section section = {.file = file};
        XXH3_64bits_reset(&section.hash);
        const struct lk_writer writer = {write_to_section, &section};
        struct lk_saving saving = {.writer = &writer, .link = lk_save_link_of(s->model), .ok = ok};
        if (i == LK_SECTION_STATES) others_send = ok = lk_agree_all(s->model, ok);
        bool exchanges = i == LK_SECTION_ROWS || i == LK_SECTION_CHECKPOINTS;
        if (ok || (others_send && exchanges)) ok = write_section(s, sampler, i, &saving, err);
        header.section[i].size = section.size;
        header.section[i].hash = XXH3_64bits_digest(&section.hash);
        header.size += section.size;
    }
    header.hash = XXH3_64bits(&header, offsetof(struct lk_session_header, hash));
    return ok && fseek(file, 0, SEEK_SET) == 0 && fwrite(&header, sizeof header, 1, file) == 1;
}

static lk_status save_file(const lk_session *s, const lk_sampler *sampler, const char *path,
                           lk_err *err) {
    struct lk_atomic_file f;
    lk_status status = lk_atomic_file_open(&f, path, err);
    if (status) {
        lk_agree_all(s->model, false); /* the others send nothing */
        return status;
    }
    lk_err why = {0};
    bool ok = write_all(s, sampler, f.file, &why);
    lk_status fault = lk_device_settle((struct lk_session *)s, err); /* rows that were not read */
    if (fault)
        status = fault;
    else if (!ok && why.code)
        status = lk_fail(err, why.code, "%s", why.msg);
    else if (!ok)
        status = lk_is_lost(s->model)
                     ? lk_fail_lost(err)
                     : lk_fail(err, LK_E_IO, "cannot write %s: %s", f.temporary, strerror(errno));
    return lk_atomic_file_close(&f, status, err);
}

/* The other processes send their states, rows and checkpoints. */
static void send_rows(const struct lk_session *s) {
    struct lk_saving saving = {.link = lk_save_link_of(s->model), .ok = true};
    if (!lk_agree_all(s->model, true)) return;
    write_states(s, &saving, NULL);
    lk_cache_write_rows(s->cache, &saving);
    lk_checkpoints_write(s, &saving);
}

static lk_status run_save(struct lk_op *op, lk_err *err) {
    if (op->path) return save_file(op->session, op->sampler, op->path, err);
    send_rows(op->session);
    return LK_OK;
}

lk_status lk_session_save(const lk_session *s, const lk_sampler *sampler, const char *path,
                          lk_err *err) {
    struct lk_op op = {.kind = LK_OP_SAVE,
                       .run = run_save,
                       .session = (struct lk_session *)s, /* these are only read */
                       .sampler = (struct lk_sampler *)sampler,
                       .path = path};
    lk_status status = lk_prefill_check_save(s, err);
    return status ? status : lk_op_run(s->model, &op, err);
}

/* ---- loading ---- */

/* A mapped file. */
struct saved {
    struct lk_mapping map;
    struct lk_session_header header;
    const uint8_t *section[LK_N_SECTION];
};

static lk_status fail_format(const char *path, const char *reason, lk_err *err) {
    return lk_fail(err, LK_E_FORMAT, "cannot load %s: %s", path, reason);
}

/* Check the header and find the sections. A header of an older version becomes one with empty last
 * sections. */
static lk_status check_header(struct saved *saved, const char *path, lk_err *err) {
    struct lk_session_header *header = &saved->header;
    if (saved->map.size < sizeof *header)
        return fail_format(path, "the file is too short for a saved session", err);
    memcpy(header, saved->map.data, sizeof *header);
    if (memcmp(header->magic, LK_SESSION_MAGIC, sizeof header->magic) != 0)
        return fail_format(path, "not a saved session", err);
    if (header->order != LK_SESSION_ORDER)
        return fail_format(path, "it was saved on a machine with another byte order", err);
    int n_section = lk_session_sections(header->version);
    if (n_section == 0)
        return lk_fail(err, LK_E_FORMAT,
                       "cannot load %s: it has version %" PRIu32
                       " of the format, this lowkey reads %d to %d; evaluate the text again and "
                       "save it again",
                       path, header->version, LK_SESSION_VERSION_4, LK_SESSION_VERSION);
    size_t hashed =
        offsetof(struct lk_session_header, section) + (size_t)n_section * sizeof *header->section;
    memcpy(&header->hash, saved->map.data + hashed, sizeof header->hash);
    if (header->hash != XXH3_64bits(saved->map.data, hashed))
        return fail_format(path, "the file is damaged: wrong checksum of the header", err);
    if (header->size != saved->map.size)
        return fail_format(path, "the file is damaged: its size has changed", err);
    for (int i = n_section; i < LK_N_SECTION; i++) {
        header->section[i].size = 0;
        header->section[i].hash = XXH3_64bits("", 0);
    }
    uint64_t at = hashed + sizeof header->hash;
    for (int i = 0; i < LK_N_SECTION; i++) {
        if (header->section[i].size > header->size - at)
            return fail_format(path, "the file is damaged: its sections exceed it", err);
        saved->section[i] = saved->map.data + at;
        at += header->section[i].size;
    }
    if (at == header->size) return LK_OK;
    return fail_format(path, "the file is damaged: its sections do not fill it", err);
}

static bool section_is_intact(const struct saved *saved, enum lk_section i) {
    return XXH3_64bits(saved->section[i], saved->header.section[i].size) ==
           saved->header.section[i].hash;
}

static lk_status open_saved(struct saved *saved, const char *path, lk_err *err) {
    lk_status status = lk_mapping_open(&saved->map, path, err);
    if (status) return status;
    status = check_header(saved, path, err);
    if (status) lk_mapping_close(&saved->map);
    return status;
}

/* All tokens must be in the vocabulary. */
static lk_status check_saved_tokens(const struct saved *saved, uint64_t n_vocab, const char *path,
                                    lk_err *err) {
    uint64_t size = saved->header.section[LK_SECTION_TOKENS].size;
    if (size % sizeof(int32_t)) return fail_format(path, "the token section is cut off", err);
    for (uint64_t i = 0; i < size / sizeof(int32_t); i++) {
        int32_t tok;
        memcpy(&tok, saved->section[LK_SECTION_TOKENS] + i * sizeof tok, sizeof tok);
        if (tok < 0 || (uint64_t)tok >= n_vocab)
            return fail_format(path, "it has a token id outside of the vocabulary", err);
    }
    return LK_OK;
}

/* Tokens and logits must fit the session. */
static lk_status check_sizes(const struct saved *saved, const struct lk_session *s,
                             const char *path, lk_err *err) {
    uint64_t n_tok = saved->header.section[LK_SECTION_TOKENS].size / sizeof(int32_t),
             n_vocab = s->model->net->hp.n_vocab;
    uint64_t logits = saved->header.section[LK_SECTION_LOGITS].size;
    if (logits != 0 && logits != n_vocab * sizeof(float))
        return fail_format(path, "its logits have another vocabulary size", err);
    if (n_tok > (uint64_t)s->opts.n_ctx)
        return lk_fail(err, LK_E_FULL,
                       "cannot load %s: its %llu tokens do not fit a context of %d; use a larger "
                       "context length",
                       path, (unsigned long long)n_tok, s->opts.n_ctx);
    return check_saved_tokens(saved, n_vocab, path, err);
}

/* Were the session's rows, latents or states made with the sidecar that the file names? */
static lk_status check_sidecar(const struct saved *saved, const struct lk_session *s, lk_err *err) {
    uint64_t used = used_sidecar(s);
    if (saved->header.sidecar == used) return LK_OK;
    if (used == 0)
        return lk_fail(err, LK_E_FORMAT,
                       "it needs the sidecar that it was saved with; pass --sidecar FILE");
    if (saved->header.sidecar == 0 && s->model->adapter)
        return lk_fail(err, LK_E_FORMAT,
                       "it was saved with the model's own weights; open the model without the "
                       "sidecar, whose adapters change them");
    if (saved->header.sidecar == 0)
        return lk_fail(err, LK_E_FORMAT, "it was saved with a recipe that needs no sidecar");
    return lk_fail(err, LK_E_FORMAT,
                   "it was saved with another sidecar; pass that one as --sidecar FILE");
}

static lk_status check_states(const struct saved *saved, const struct lk_session *s, lk_err *err) {
    const uint8_t *states = saved->section[LK_SECTION_STATES];
    uint64_t size = saved->header.section[LK_SECTION_STATES].size,
             recurrent = lk_recurrent_saved_bytes(&s->model->net->hp);
    if (size != recurrent + (s->absorb ? lk_absorb_saved_bytes(s->absorb) : 0))
        return lk_fail(err, LK_E_FORMAT, "its states of %s have another size",
                       recurrent ? "layers" : "evicted rows");
    if (recurrent && !lk_recurrent_check(&s->model->net->hp, states))
        return lk_fail(err, LK_E_FORMAT, "its states of recurrent layers are invalid");
    if (s->absorb && !lk_absorb_check(s->absorb, states + recurrent))
        return lk_fail(err, LK_E_FORMAT, "its states of evicted rows are invalid");
    return LK_OK;
}

/* Check everything before anything is changed. */
static lk_status check_saved(const struct saved *saved, const struct lk_session *s,
                             const char *path, lk_err *err) {
    const struct lk_session_header *header = &saved->header;
    if (header->model != model_id(s->model))
        return fail_format(path, "it was saved with another model", err);
    if (header->weights & LK_SAVED_MTP)
        return fail_format(path,
                           "it has rows of a layer that predicts further tokens (MTP), which only "
                           "the tag papers-2026-11 computes",
                           err);
    if (header->weights)
        return fail_format(path,
                           "it was saved with weights replaced by factors (--factors), which only "
                           "the tag papers-2026-11 loads",
                           err);
    for (int i = 0; i < LK_N_SECTION; i++)
        if (!section_is_intact(saved, i))
            return fail_format(path, "the file is damaged: wrong checksum of a section", err);
    lk_status status = check_sizes(saved, s, path, err);
    if (status) return status;
    const char *recipe = (const char *)saved->section[LK_SECTION_RECIPE],
               *own = lk_recipe_text(s->recipe);
    size_t len = header->section[LK_SECTION_RECIPE].size,
           n_tok = header->section[LK_SECTION_TOKENS].size / sizeof(int32_t);
    bool same_text = strlen(own) == len && memcmp(own, recipe, len) == 0;
    int n_layer = s->cache->shape.n_layer;
    uint64_t prefill = header->section[LK_SECTION_PREFILL].size;
    lk_err why;
    status = same_text ? check_sidecar(saved, s, &why) : LK_OK;
    if (!status && prefill)
        status = lk_prefill_check(s, saved->section[LK_SECTION_PREFILL], prefill, n_tok,
                                  header->section[LK_SECTION_LOGITS].size > 0, &n_layer, &why);
    if (!status)
        status = lk_cache_check(
            s->cache, saved->section[LK_SECTION_COUNTS], header->section[LK_SECTION_COUNTS].size,
            saved->section[LK_SECTION_ROWS], header->section[LK_SECTION_ROWS].size, NULL,
            (int64_t)n_tok, n_layer, &why);
    if (!status && prefill && header->section[LK_SECTION_CHECKPOINTS].size)
        status = lk_fail(&why, LK_E_FORMAT, "a prefill that was cut short has no checkpoints yet");
    if (!status) status = check_states(saved, s, &why);
    if (!status)
        status = lk_checkpoints_check(s, saved->section[LK_SECTION_CHECKPOINTS],
                                      header->section[LK_SECTION_CHECKPOINTS].size,
                                      saved->section[LK_SECTION_COUNTS], n_tok, &why);
    if (!status && !same_text) status = check_sidecar(saved, s, &why);
    if (!status) return LK_OK;
    if (same_text || status != LK_E_FORMAT)
        return lk_fail(err, status, "cannot load %s: %s", path, why.msg);
    return lk_fail(
        err, LK_E_FORMAT,
        "cannot load %s: it was saved with another recipe, \"%.*s\", not with \"%.100s\"", path,
        len > 100 ? 100 : (int)len, recipe, own);
}

/* Start to read a section. link: NULL if this process has it; room: as of lk_restoring_start. */
static struct lk_restoring start_section(const struct saved *saved, enum lk_section which,
                                         struct lk_save_link *link, void *room) {
    return lk_restoring_start(saved->section[which], saved->header.section[which].size, link, room);
}

/* All processes have the sections of a checked file but rows and checkpoints, which process 0
 * broadcasts. room: as of lk_restoring_start. */
static lk_status restore_session(const struct saved *saved, struct lk_session *s, void *room,
                                 lk_err *err) {
    struct lk_save_link *link = lk_save_link_of(s->model);
    uint64_t logits = saved->header.section[LK_SECTION_LOGITS].size;
    struct lk_restoring rows = start_section(saved, LK_SECTION_ROWS, link, room),
                        states = start_section(saved, LK_SECTION_STATES, NULL, NULL),
                        checkpoints = start_section(saved, LK_SECTION_CHECKPOINTS, link, room);
    lk_err why = {0};
    lk_session_drop_suspended(s);
    lk_checkpoints_drop(s, 0); /* of the tokens before */
    lk_status status = logits ? lk_session_reserve_logits(s, 1, &why) : LK_OK;
    if (!status)
        status = lk_cache_restore_counts(s->cache, saved->section[LK_SECTION_COUNTS], &why);
    status = lk_agree(s->model, status, &why);
    if (!status && !lk_cache_restore_rows(s->cache, &rows)) status = lk_fail_lost(&why);
    if (!status) status = lk_device_settle(s, &why);
    if (status) {
        lk_session_drop_tokens(s);
        return lk_fail(err, status, "%s", why.msg);
    }
    bool suspended = saved->header.section[LK_SECTION_PREFILL].size > 0;
    uint64_t tokens = saved->header.section[LK_SECTION_TOKENS].size;
    s->n_tok = suspended ? 0 : tokens / sizeof *s->tok;
    memcpy(s->tok, saved->section[LK_SECTION_TOKENS], tokens);
    status = lk_recurrent_load(s, &states, err);
    if (status) {
        lk_session_drop_tokens(s);
        return status;
    }
    if (s->absorb) lk_absorb_restore(s->absorb, states.piece);
    if (logits) memcpy(s->logits, saved->section[LK_SECTION_LOGITS], logits);
    s->n_logits = logits && !suspended ? 1 : 0;
    s->n_pass = 0;
    s->n_cut++;
    lk_checkpoints_load(s, &checkpoints);
    status = suspended ? lk_prefill_load(s, saved->section[LK_SECTION_PREFILL], err) : LK_OK;
    if (status) {
        lk_session_drop_tokens(s);
        return status;
    }
    return lk_is_lost(s->model) ? lk_fail_lost(err) : LK_OK;
}

/* ---- loading in several processes: process 0 has the file, and broadcasts it ---- */

/* The sections that every process gets whole, before rows and checkpoints. */
static const enum lk_section broadcast_sections[] = {LK_SECTION_TOKENS, LK_SECTION_LOGITS,
                                                     LK_SECTION_STATES, LK_SECTION_COUNTS};
enum { N_BROADCAST = sizeof broadcast_sections / sizeof *broadcast_sections };

/* Broadcast the sections from process 0, whose file is mapped, to room for them in the others. */
static bool broadcast_file(const struct lk_model *model, struct saved *saved) {
    bool ok = true;
    for (int i = 0; i < N_BROADCAST; i++) {
        enum lk_section which = broadcast_sections[i];
        uint64_t n = saved->header.section[which].size;
        if (n > 0) ok = ok && lk_broadcast(model, (void *)saved->section[which], n);
    }
    return ok;
}

/* Restore a checked file in all processes. */
static lk_status restore_everywhere(struct saved *saved, struct lk_session *s, lk_err *err) {
    if (!lk_broadcast(s->model, &saved->header, sizeof saved->header) ||
        !lk_agree_all(s->model, true))
        return lk_fail(err, LK_E_NOMEM, "another process is out of memory to load a session");
    if (!broadcast_file(s->model, saved)) return lk_fail_lost(err);
    return restore_session(saved, s, NULL, err);
}

/* What the other processes do. */
static void receive_saved(struct lk_session *s) {
    struct saved saved = {0};
    lk_err why = {0};
    if (lk_agree(s->model, LK_OK, &why) || /* process 0 could not load the file */
        !lk_broadcast(s->model, &saved.header, sizeof saved.header))
        return;
    size_t n = LK_RESTORE_ROOM, at = LK_RESTORE_ROOM;
    for (int i = 0; i < N_BROADCAST; i++) n += saved.header.section[broadcast_sections[i]].size;
    uint8_t *room = lk_alloc(&s->model->ledger, LK_FOR_OTHER, n);
    for (int i = 0; room && i < N_BROADCAST; i++) {
        saved.section[broadcast_sections[i]] = room + at;
        at += saved.header.section[broadcast_sections[i]].size;
    }
    if (lk_agree_all(s->model, room != NULL) && broadcast_file(s->model, &saved))
        restore_session(&saved, s, room, NULL);
    lk_release(&s->model->ledger, LK_FOR_OTHER, room, n);
}

static lk_status load_file(lk_session *s, lk_sampler *sampler, const char *path, lk_err *err) {
    struct saved saved = {0};
    lk_err why = {0};
    lk_status status = open_saved(&saved, path, &why);
    bool opened = !status;
    if (!status) status = check_saved(&saved, s, path, &why);
    uint64_t n_sampler = saved.header.section[LK_SECTION_SAMPLER].size;
    if (!status && sampler && n_sampler) {
        bool restored;
        lk_err reason;
        status = lk_sampling_restore(sampler->sampling, saved.section[LK_SECTION_SAMPLER],
                                     n_sampler, s->model->net->hp.n_vocab, &restored, &reason);
        if (status) lk_fail(&why, status, "cannot load %s: %s", path, reason.msg);
    }
    status = lk_agree(s->model, status, &why);
    if (!status) status = restore_everywhere(&saved, s, &why);
    if (opened) lk_mapping_close(&saved.map);
    return status ? lk_fail(err, status, "%s", why.msg) : LK_OK;
}

static lk_status run_load(struct lk_op *op, lk_err *err) {
    if (op->path) return load_file(op->session, op->sampler, op->path, err);
    receive_saved(op->session);
    return LK_OK;
}

lk_status lk_session_load(lk_session *s, lk_sampler *sampler, const char *path, lk_err *err) {
    struct lk_op op = {
        .kind = LK_OP_LOAD, .run = run_load, .session = s, .sampler = sampler, .path = path};
    return lk_op_run(s->model, &op, err);
}

lk_status lk_session_file_recipe(lk_recipe **out, const char *path, lk_err *err) {
    struct saved saved = {0};
    lk_status status = open_saved(&saved, path, err);
    if (status) return status;
    size_t len = saved.header.section[LK_SECTION_RECIPE].size;
    char text[MAX_RECIPE + 1];
    lk_err why;
    if (!section_is_intact(&saved, LK_SECTION_RECIPE)) {
        status = fail_format(path, "the file is damaged: wrong checksum of a section", err);
    } else if (len >= sizeof text || memchr(saved.section[LK_SECTION_RECIPE], 0, len)) {
        status = fail_format(path, "its recipe is not text", err);
    } else {
        memcpy(text, saved.section[LK_SECTION_RECIPE], len);
        text[len] = 0;
        status = lk_recipe_parse(out, text, &why);
        if (status) lk_fail(err, status, "cannot load %s: its recipe: %s", path, why.msg);
    }
    lk_mapping_close(&saved.map);
    return status;
}

lk_status lk_session_file_suspended(const char *path, size_t *n_done, lk_err *err) {
    struct saved saved = {0};
    lk_status status = open_saved(&saved, path, err);
    if (status) return status;
    *n_done = (size_t)lk_prefill_saved_done(saved.section[LK_SECTION_PREFILL],
                                            saved.header.section[LK_SECTION_PREFILL].size);
    lk_mapping_close(&saved.map);
    return LK_OK;
}

lk_status lk_session_file_tokens(const lk_model *model, const char *path, int32_t **tok,
                                 size_t *n_tok, lk_err *err) {
    struct saved saved = {0};
    lk_status status = open_saved(&saved, path, err);
    if (status) return status;
    if (saved.header.model != model_id(model))
        status = fail_format(path, "it was saved with another model", err);
    else if (!section_is_intact(&saved, LK_SECTION_TOKENS))
        status = fail_format(path, "the file is damaged: wrong checksum of a section", err);
    else
        status = check_saved_tokens(&saved, model->net->hp.n_vocab, path, err);
    if (!status) {
        size_t size = saved.header.section[LK_SECTION_TOKENS].size;
        int32_t *copy = malloc(size + 1);
        if (copy) {
            memcpy(copy, saved.section[LK_SECTION_TOKENS], size);
            *tok = copy;
            *n_tok = size / sizeof *copy;
        } else {
            status = lk_fail(err, LK_E_NOMEM, "out of memory for the tokens of %s", path);
        }
    }
    lk_mapping_close(&saved.map);
    return status;
}
