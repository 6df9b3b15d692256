/* Rows between levels: lists of moves, and eviction. */
#include "cache/move.h"

#include "cache/cache.h"
#include "cache/equalizer.h"
#include "cache/move_command.h"
#include "cache/move_project.h"
#include "cache/project.h"

#include <string.h>

int lk_move_rows(const struct lk_kv *kv, int from, int n) {
    int64_t index = lk_kv_level_first(kv, from);
    int64_t same = lk_held_end(kv, index) - index;
    return same < n ? (int)same : n;
}

/* ---- executing moves on the CPU ---- */

/* Decode part `part` of the rows of the blocks that a move starts from. */
static void read_blocks(const struct lk_move *m, int part, const struct lk_kernels *kernels,
                        float *x, size_t stride) {
    const struct lk_kv *kv = m->kv;
    struct lk_part p = lk_kv_part(kv, m->from, part);
    size_t offset = lk_level_part_offset(&kv->level[m->from], part);
    int row = m->from_row;
    for (int done = 0, b = 0; done < m->n; b++, row = 0) {
        int n = p.block_rows - row < m->n - done ? p.block_rows - row : m->n - done;
        kernels->decode(&p, lk_block_address(kv->arena, m->from_block[b]) + offset, row, n,
                        x + done * stride, stride);
        done += n;
    }
}

/* The rows of one head, into x. */
static void read_head(const struct lk_move *m, int head, const struct lk_kernels *kernels, float *x,
                      size_t stride) {
    size_t width = lk_kv_width(m->kv);
    int d_head = m->kv->d_head;
    if (!m->x) read_blocks(m, head, kernels, x, stride);
    for (int t = 0; m->x && t < m->n; t++)
        memcpy(x + t * stride, m->x + t * width + (size_t)head * d_head, d_head * sizeof *x);
}

/* Latents of the heads of a part, into z. rows: scratch of the same size. */
static void project_heads(const struct lk_move *m, int part, const struct lk_kernels *kernels,
                          float *rows, float *z, size_t stride) {
    const struct lk_level *to = &m->kv->level[m->to];
    for (int t = 0; t < m->n; t++)
        memset(z + t * stride, 0, lk_level_part_channels(to, part) * sizeof *z);
    for (int head = part * to->n_head; head < (part + 1) * to->n_head; head++) {
        struct lk_basis_head h = lk_level_basis_head(to, head);
        read_head(m, head, kernels, rows, stride);
        if (to->rope) lk_rope_unrotate(to->rope, m->pos, m->n, rows, stride);
        lk_project_add(&h, rows, stride, m->n, z, stride);
    }
}

/* Encode x, rows `stride` floats apart, as part `part`. */
static void write_part(const struct lk_move *m, int part, const struct lk_kernels *kernels,
                       const float *x, size_t stride) {
    const struct lk_kv *kv = m->kv;
    struct lk_part p = lk_kv_part(kv, m->to, part);
    size_t offset = lk_level_part_offset(&kv->level[m->to], part);
    int row = m->to_row;
    for (int done = 0, b = 0; done < m->n; b++, row = 0) {
        char *block = lk_block_address(kv->arena, m->to_block[b]) + offset;
        int n = p.block_rows - row < m->n - done ? p.block_rows - row : m->n - done;
        if (m->replaces)
            lk_codec_replace(&p, block, row, x);
        else
            kernels->encode(&p, block, row, n, x + done * stride, stride);
        done += n;
    }
}

void lk_move_execute(const struct lk_move *m, const struct lk_kernels *kernels, float *scratch,
                     int d) {
    const struct lk_kv *kv = m->kv;
    const struct lk_level *to = &kv->level[m->to];
    bool projects = to->basis && (m->x || !kv->level[m->from].basis);
    float *rows = scratch, *z = scratch + (size_t)LK_MAX_MOVE * d;
    for (int part = m->first_part; part < m->end_part; part++) {
        const float *x = z;
        size_t stride = d;
        if (projects) {
            project_heads(m, part, kernels, rows, z, stride);
        } else if (m->x) {
            x = m->x + lk_move_offset(kv, to, part);
            stride = lk_kv_width(kv);
        } else {
            read_blocks(m, part, kernels, z, stride);
        }
        write_part(m, part, kernels, x, stride);
    }
}

struct lk_moves *lk_moves_start(struct lk_short_list *list, struct lk_cache *cache,
                                float *scratch) {
    list->moves = (struct lk_moves){.cache = cache,
                                    .scratch = scratch,
                                    .move = list->move,
                                    .cap = sizeof list->move / sizeof *list->move,
                                    .gone = list->gone,
                                    .cap_gone = sizeof list->gone / sizeof *list->gone};
    return &list->moves;
}

struct lk_moves *lk_moves_start_long(struct lk_long_list *list, struct lk_cache *cache,
                                     float *scratch) {
    list->moves = (struct lk_moves){.cache = cache,
                                    .scratch = scratch,
                                    .move = list->move,
                                    .cap = LK_LIST_MOVES,
                                    .gone = list->gone,
                                    .cap_gone = LK_LIST_MOVES};
    return &list->moves;
}

/* Does `later` write what `earlier` reads or writes, or read what it writes? */
static bool depends(const struct lk_move *later, const struct lk_move *earlier) {
    if (later->kv != earlier->kv) return false;
    bool same_parts =
        later->first_part < earlier->end_part && earlier->first_part < later->end_part;
    /* Rows of some heads go out, rows of others are replaced. */
    if (!same_parts && ((later->out && later->from == earlier->to) ||
                        (earlier->out && earlier->from == later->to)))
        return false;
    for (int i = 0; i < LK_MOVE_BLOCKS; i++)
        for (int j = 0; j < LK_MOVE_BLOCKS; j++) {
            lk_block read = later->from_block[i], written = earlier->to_block[j];
            if (read && read == written) return true;
            read = earlier->from_block[j];
            if (read && read == later->to_block[i]) return true;
            if (same_parts && written && written == later->to_block[i]) return true;
        }
    return false;
}

/* Does a move encode or decode with channel statistics? */
static bool needs_sigma(const struct lk_move *m) {
    return m->kv->rule[m->to].codec.sigma || (!m->x && m->kv->rule[m->from].codec.sigma);
}

/* What moves read besides rows: the channel statistics of their kv. */
static lk_status send_sigma(struct lk_device *device, const struct lk_move *move, size_t n) {
    const struct lk_kv *sent = NULL;
    lk_status status = LK_OK;
    for (size_t m = 0; m < n; m++) {
        const struct lk_kv *kv = move[m].kv;
        if (kv == sent || !needs_sigma(&move[m])) continue;
        for (int i = 0; i < 2 && !status; i++)
            if (kv->sigma_at[i] && kv->equalizer[i].calibrated)
                status = device->call->upload(device, kv->sigma_at[i], kv->equalizer[i].sigma,
                                              lk_equalizer_array_bytes(&kv->equalizer[i]), NULL);
        sent = kv;
    }
    return status;
}

/* Let a device execute moves that do not depend on each other. */
static lk_status give_moves(struct lk_cache *cache, const struct lk_move *move, size_t n) {
    struct lk_device *device = cache->shape.device;
    struct lk_device_move *command = cache->command[move[0].kv->side];
    if (device->uses_host) return device->call->move(device, NULL, move, n, NULL);
    lk_status status = send_sigma(device, move, n);
    int n_command = 0;
    for (size_t m = 0; m < n && !status; m++) {
        const struct lk_kv *kv = move[m].kv;
        struct lk_sigma_addresses sigma = {{kv->sigma_at[0], kv->sigma_at[1]}};
        if (lk_move_projects(&move[m])) continue;
        if (n_command + move[m].end_part - move[m].first_part > LK_LIST_MOVES) {
            status = device->call->move(device, command, NULL, (size_t)n_command, NULL);
            n_command = 0;
        }
        n_command += lk_move_commands(&move[m], &sigma, 0, command + n_command);
    }
    if (!status) status = device->call->move(device, command, NULL, (size_t)n_command, NULL);
    return status ? status : lk_moves_project(cache, move, n);
}

/* Let a device run the list: round after round of moves that do not depend on each other. */
static void run_on_device(const struct lk_moves *list) {
    struct lk_move ready[LK_LIST_MOVES];
    int round[LK_LIST_MOVES], last = 0;
    for (int i = 0; i < list->n; i++) {
        round[i] = 0;
        for (int j = 0; j < i; j++)
            if (round[j] >= round[i] && depends(&list->move[i], &list->move[j]))
                round[i] = round[j] + 1;
        if (round[i] > last) last = round[i];
    }
    for (int r = 0; r <= last; r++) {
        size_t n = 0;
        for (int i = 0; i < list->n; i++)
            if (round[i] == r) ready[n++] = list->move[i];
        lk_arena_note(&list->cache->pool.arena, give_moves(list->cache, ready, n));
    }
}

void lk_moves_run(struct lk_moves *list) {
    struct lk_cache *cache = list->cache;
    struct lk_device *device = cache->shape.device;
    if (device && list->n > 0) run_on_device(list);
    for (int i = 0; !device && i < list->n; i++)
        lk_move_execute(&list->move[i], cache->kernels, list->scratch,
                        cache->d_part[list->move[i].kv->side]);
    for (int i = 0; i < list->n_gone; i++) lk_pool_free(&cache->pool, list->gone[i]);
    list->n = list->n_gone = 0;
}

/* ---- making lists ---- */

void lk_moves_calibrate(struct lk_moves *list, struct lk_kv *kv, int from) {
    struct lk_cache *cache = list->cache;
    int to = from - 1, d = cache->d_part[kv->side];
    if (!kv->rule[to].codec.sigma || lk_kv_equalizer(kv, to)->calibrated) return;
    lk_moves_run(list);
    struct lk_row_range range = {kv, from, 0, kv->count[from].rows / LK_TILE * LK_TILE};
    for (int part = 0; !kv->is_elsewhere && part < kv->level[to].n_part; part++)
        lk_equalizer_calibrate(kv, to, part, &range, cache->kernels, list->scratch,
                               list->scratch + (size_t)LK_MAX_MOVE * d, d);
    kv->equalizer[kv->level[to].basis != NULL].calibrated = true;
    if (kv->has_all_rows && !lk_held_collects(kv, kv->count)) lk_cache_divide(cache, kv);
}

/* Do rows of the level move to another one when the list runs? */
static bool is_read(const struct lk_moves *list, const struct lk_kv *kv, int level) {
    for (int i = 0; i < list->n; i++)
        if (list->move[i].kv == kv && !list->move[i].x && list->move[i].from == level) return true;
    return false;
}

void lk_moves_add(struct lk_moves *list, const struct lk_move *m) {
    if (list->n == list->cap) lk_moves_run(list);
    list->move[list->n++] = *m;
}

/* A move of rows [at, at + n) of level `from`, counted from its oldest row, to level `to`. */
static struct lk_move move_from(const struct lk_kv *kv, int from, int64_t at, int n, int to) {
    int block_rows = kv->rule[from].block_rows;
    int64_t index = kv->count[from].skip + at, block = index / block_rows;
    struct lk_move m = {.kv = kv,
                        .from = from,
                        .to = to,
                        .n = n,
                        .end_part = kv->level[to].n_part,
                        .from_row = (int)(index % block_rows),
                        .pos = kv->is_elsewhere ? 0 : lk_kv_position(kv, from, at, 0)};
    for (int i = 0; i * block_rows < m.from_row + n; i++)
        m.from_block[i] = kv->level[from].block[block + i];
    return m;
}

/* Make the blocks [first, first + n) of a level writable, and append those that are missing. False
 * without memory. */
static bool take_blocks(struct lk_cache *cache, struct lk_level *level, int64_t first, int64_t n,
                        bool held) {
    int64_t n_before = level->n_block;
    for (int64_t b = first; b < first + n; b++)
        if ((b >= level->n_block && !lk_cache_add_block(cache, level, held)) ||
            (held && !lk_cache_make_writable(cache, level, b))) {
            while (level->n_block > n_before)
                lk_pool_free(&cache->pool, level->block[--level->n_block]);
            return false;
        }
    return true;
}

/* Append the rows of a move, all of the same share, to its level. False without memory. */
static bool append_move(struct lk_moves *list, struct lk_kv *kv, struct lk_move *m) {
    struct lk_level *level = &kv->level[m->to];
    struct lk_level_count *count = &kv->count[m->to];
    int block_rows = kv->rule[m->to].block_rows;
    int64_t index = count->skip + count->rows;
    bool held = lk_held_has_row(kv, m->to, count->rows);
    /* Blocks that rows of this level leave must become free first, as was reserved, and a shared
     * block may be replaced. */
    if (is_read(list, kv, m->to)) lk_moves_run(list);
    m->to_row = (int)(index % block_rows);
    int n_block = (m->to_row + m->n + block_rows - 1) / block_rows;
    if (!take_blocks(list->cache, level, index / block_rows, n_block, held)) return false;
    for (int i = 0; i < n_block; i++) m->to_block[i] = level->block[index / block_rows + i];
    count->rows += m->n;
    if (held) lk_moves_add(list, m);
    return true;
}

bool lk_moves_append(struct lk_moves *list, struct lk_kv *kv, int to, const float *x, int64_t n,
                     int64_t pos) {
    int block_rows = kv->rule[to].block_rows;
    for (int64_t done = 0; done < n;) {
        int64_t row = (kv->count[to].skip + kv->count[to].rows) % block_rows, some = n - done;
        if (some > LK_MAX_MOVE) some = LK_MAX_MOVE;
        /* Other blocks may be of other shares. */
        if (lk_kv_is_divided(kv) && some > block_rows - row) some = block_rows - row;
        struct lk_move m = {.kv = kv,
                            .x = x ? x + done * lk_kv_width(kv) : NULL,
                            .to = to,
                            .n = (int)some,
                            .end_part = kv->level[to].n_part,
                            .pos = pos + done};
        if (!append_move(list, kv, &m)) return false;
        done += some;
    }
    return true;
}

bool lk_moves_age(struct lk_moves *list, struct lk_kv *kv, int from, int64_t n) {
    while (n > 0) {
        int some = n < LK_MAX_MOVE ? (int)n : LK_MAX_MOVE;
        struct lk_move m = move_from(kv, from, 0, some, from - 1);
        if (!append_move(list, kv, &m)) return false;
        lk_moves_drop(list, kv, from, some);
        n -= some;
    }
    return true;
}

void lk_moves_drop(struct lk_moves *list, struct lk_kv *kv, int i, int64_t n) {
    struct lk_level *level = &kv->level[i];
    int64_t n_empty = (kv->count[i].skip + n) / kv->rule[i].block_rows;
    if (n == kv->count[i].rows) n_empty = level->n_block;
    lk_level_remove(&kv->rule[i], &kv->count[i], n);
    for (int64_t b = 0; b < n_empty; b++) {
        if (list->n_gone == list->cap_gone) lk_moves_run(list);
        list->gone[list->n_gone++] = level->block[b];
    }
    level->n_block -= n_empty;
    memmove(level->block, level->block + n_empty, level->n_block * sizeof *level->block);
}

/* ---- eviction: aging rows of a layer with a limit, and choosing the rows of a prompt ---- */

/* A batch of rows on its way to a level with a limit. Its first rows, which fit, have already
 * moved. The others are still the oldest rows of the newer level. */
struct batch {
    struct lk_moves *list;
    struct lk_cache *cache;
    int layer, to;  /* layer and level */
    int64_t base;   /* index of the level's first row */
    int64_t n_left; /* rows that do not fit without replacing others */
};

/* Do the layer's evicted rows go to the room instead of to the hook? */
static bool uses_room(const struct lk_cache *cache, int layer) {
    const struct lk_evict_room *room = cache->evict_room;
    bool latents = false;
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < cache->kv[layer][side].n_level; i++)
            latents |= cache->kv[layer][side].level[i].basis != NULL;
    return room && room->user == cache->evict_hook.user && !latents;
}

/* Let row `at` of a level go to the room, for the heads of a unit. */
static void send_row(const struct batch *b, int level, int64_t at, int first_head) {
    const struct lk_evict_room *room = b->cache->evict_room;
    for (int side = 0; side < 2; side++) {
        const struct lk_kv *kv = &b->cache->kv[b->layer][side];
        struct lk_move m = move_from(kv, level, at, 1, level);
        size_t row = (size_t)b->layer * room->cap + room->n[b->layer];
        m.out = room->at[side] + row * lk_kv_width(kv) * sizeof(float);
        m.first_part = first_head;
        m.end_part = first_head + b->cache->evict[b->layer].unit;
        lk_moves_add(b->list, &m);
    }
}

/* Report row `at` of a level to the eviction hook, for the heads of a unit. */
static void report_row(const struct batch *b, int level, int64_t at, int first_head) {
    const struct lk_cache *cache = b->cache;
    if (uses_room(cache, b->layer)) {
        send_row(b, level, at, first_head);
        return;
    }
    const struct lk_evict_hook *hook = &cache->evict_hook;
    float x[2][LK_MAX_D_HEAD];
    if (!hook->on_evict) return;
    lk_moves_run(b->list); /* the row may be one that the list writes */
    for (int i = 0; i < cache->evict[b->layer].unit; i++) {
        int head = first_head + i;
        for (int side = 0; side < 2; side++)
            lk_project_read_head(&cache->kv[b->layer][side], level, at, head,
                                 cache->kv[b->layer][side].d_head, cache->kernels, x[side]);
        hook->on_evict(hook->user, b->layer, head, x[LK_K], x[LK_V]);
    }
}

/* Encode row r of the batch in place of row `victim` of the level, in the parts of a unit. False
 * without memory. */
static bool replace_parts(const struct batch *b, enum lk_side side, int64_t r, int first_head,
                          int64_t victim) {
    struct lk_cache *cache = b->cache;
    struct lk_kv *kv = &cache->kv[b->layer][side];
    struct lk_level *level = &kv->level[b->to];
    int64_t index = kv->count[b->to].skip + victim, block = index / kv->rule[b->to].block_rows;
    struct lk_move m = move_from(kv, b->to + 1, r, 1, b->to);
    if (!lk_cache_make_writable(cache, level, block)) return false;
    m.replaces = true;
    m.to_row = (int)(index % kv->rule[b->to].block_rows);
    m.to_block[0] = level->block[block];
    m.first_part = first_head / level->n_head;
    m.end_part = (first_head + cache->evict[b->layer].unit) / level->n_head;
    lk_moves_add(b->list, &m);
    return true;
}

/* Evict row `victim` of the level, for one unit, in favor of row r of the batch. Both are counted
 * from the level's first row, and `arrival` is where row r would be if the level had room. If the
 * policy chose row r itself, it is evicted at once. False without memory. */
static bool replace_row(const struct batch *b, int64_t r, int first_head, int64_t victim,
                        int64_t arrival) {
    struct lk_evict *evict = &b->cache->evict[b->layer];
    if (victim == arrival) {
        report_row(b, b->to + 1, r, first_head);
        return true;
    }
    report_row(b, b->to, victim, first_head);
    for (int side = 0; side < 2; side++)
        if (!replace_parts(b, side, r, first_head, victim)) return false;
    size_t n_head = evict->n_head, to = (b->base + victim) * n_head + first_head,
           from = (b->base + arrival) * n_head + first_head;
    memcpy(evict->pos + to, evict->pos + from, evict->unit * sizeof *evict->pos);
    if (evict->needs_scores)
        memcpy(evict->score + to, evict->score + from, evict->unit * sizeof *evict->score);
    return true;
}

/* Let the rows of the batch that do not fit compete with the rows that the full level holds. */
static bool replace_rows(const struct batch *b) {
    struct lk_evict *evict = &b->cache->evict[b->layer];
    const struct lk_kv *k = &b->cache->kv[b->layer][LK_K];
    int n_head = evict->n_head;
    int64_t n_held = k->count[b->to].rows, victim = 0;
    struct lk_policy_rows rows = {.score =
                                      evict->needs_scores ? evict->score + b->base * n_head : NULL,
                                  .pos = evict->pos + b->base * n_head,
                                  .n_head = n_head,
                                  .unit = evict->unit,
                                  .n_tok = k->n_tok};
    struct lk_evict_room *room = uses_room(b->cache, b->layer) ? b->cache->evict_room : NULL;
    for (int64_t r = 0; r < b->n_left; r++) {
        if (room && room->n[b->layer] == room->cap) {
            lk_moves_run(b->list);
            room->take(room->user);
        }
        for (int head = 0; head < n_head; head += evict->unit) {
            int64_t arrival = n_held + r;
            if (head == 0 || !lk_policy_is_per_layer(&evict->policy))
                victim = lk_policy_argmin(&evict->policy, &rows, n_held, arrival, head);
            if (!replace_row(b, r, head, victim, arrival)) return false;
        }
        if (room) room->n[b->layer]++;
    }

    /* Close the gap that the batch leaves in the state. */
    int64_t gap = b->base + n_held;
    size_t n_after = (evict->n - gap - b->n_left) * n_head;
    memmove(evict->pos + gap * n_head, evict->pos + (gap + b->n_left) * n_head,
            n_after * sizeof *evict->pos);
    if (evict->needs_scores)
        memmove(evict->score + gap * n_head, evict->score + (gap + b->n_left) * n_head,
                n_after * sizeof *evict->score);
    evict->n -= b->n_left;
    return true;
}

/* Move n rows of level `from` to the next older level, or evict them. False without memory. */
static bool move_batch(struct lk_moves *list, int layer, int from, int64_t n) {
    struct lk_cache *cache = list->cache;
    const struct lk_kv *k = &cache->kv[layer][LK_K];
    struct batch b = {.list = list, .cache = cache, .layer = layer, .to = from - 1};
    int64_t n_fit = lk_level_room(&k->rule[b.to], &k->count[b.to], k->n_tok, n);
    bool holds_none = lk_limit_is_zero(&k->rule[b.to].limit); /* nothing is encoded */
    for (int i = 0; i < b.to; i++) b.base += k->count[i].rows;
    b.n_left = n - n_fit;
    for (int side = 0; !holds_none && side < 2; side++) {
        struct lk_kv *kv = &cache->kv[layer][side];
        lk_moves_calibrate(list, kv, from);
        if (!lk_moves_age(list, kv, from, n_fit)) return false;
    }
    if (b.n_left && !k->is_elsewhere && !replace_rows(&b)) return false;
    for (int side = 0; side < 2; side++) {
        lk_moves_drop(list, &cache->kv[layer][side], from, b.n_left);
        cache->kv[layer][side].first += b.n_left;
    }
    return true;
}

lk_status lk_evict_age(struct lk_moves *list, int layer, lk_err *err) {
    struct lk_cache *cache = list->cache;
    struct lk_kv *k = &cache->kv[layer][LK_K], *v = &cache->kv[layer][LK_V];
    if (k->n_tok != v->n_tok) return LK_OK;
    int from, n;
    while (lk_level_next_move(k->rule, k->count, k->n_level, k->n_tok, &from, &n))
        if (!move_batch(list, layer, from, n))
            return lk_fail(err, LK_E_NOMEM, "no memory for the cache of layer %d", layer);
    return LK_OK;
}

/* ---- whole prompts ---- */

/* Report to the hook the rows [from, from + n) of a head that are not among the n_kept rows of
 * `kept`, which are sorted. */
static void report_dropped_rows(const struct lk_cache *cache, int layer, int head,
                                const struct lk_kv *const exact[2], int64_t from, int64_t n,
                                const struct lk_scored_row *kept, int64_t n_kept) {
    float x[2][LK_MAX_D_HEAD];
    for (int64_t pos = from, i = 0; pos < from + n; pos++) {
        if (i < n_kept && kept[i].row == pos) {
            i++;
            continue;
        }
        for (int side = 0; side < 2; side++)
            lk_kv_read(&(struct lk_row_range){exact[side], 0, pos, 1}, head, cache->kernels,
                       x[side], exact[side]->d_head);
        cache->evict_hook.on_evict(cache->evict_hook.user, layer, head, x[LK_K], x[LK_V]);
    }
}

void lk_evict_select(struct lk_cache *cache, int layer, int head, const float *attn_scores,
                     const struct lk_kv *const exact[2], struct lk_scored_row *order) {
    struct lk_evict *evict = &cache->evict[layer];
    const struct lk_kv *k = &cache->kv[layer][LK_K];
    int level = 0, n_head = evict->n_head;
    while (k->rule[level].limit.policy.kind == LK_POLICY_NONE) level++;
    int64_t n_sink = level > 0 ? k->count[0].rows : 0, n_kept = k->count[level].rows,
            n_candidate = n_kept + k->first;
    if (head % evict->unit) return;
    struct lk_policy_rows rows = {
        .score = attn_scores, .n_head = n_head, .unit = evict->unit, .n_tok = k->n_tok};
    lk_policy_select(&evict->policy, &rows, n_sink, n_candidate, n_kept, head, order);
    for (int h = head; cache->evict_hook.on_evict && h < head + evict->unit; h++)
        report_dropped_rows(cache, layer, h, exact, n_sink, n_candidate, order, n_kept);
    for (int64_t i = 0; i < evict->n; i++) {
        int64_t pos = i < n_sink ? i : i < n_sink + n_kept ? order[i - n_sink].row : i + k->first;
        for (int h = head; h < head + evict->unit; h++) {
            evict->pos[i * n_head + h] = (int32_t)pos;
            if (evict->needs_scores) evict->score[i * n_head + h] = attn_scores[pos * n_head + h];
        }
    }
}
