/* Moves into levels of latents as commands for a device. */
#include "cache/move_project.h"

#include "cache/cache.h"
#include "cache/move_command.h"
#include "cache/project.h"

enum { MOVES = 8 /* at a time, at most */ };

/* Room of a thread's moves: floats of LK_MAX_MOVE rows, latents and angles of the rotation each. */
struct lk_projecting {
    uint64_t at;                  /* [n_move] rows, [n_move] latents, [n_move] angles */
    size_t bytes;                 /* of all that */
    int n_move;                   /* at a time */
    size_t row, latent, angle;    /* floats of a move */
    float *angles;                /* [LK_MAX_MOVE][pairs][2] on their way */
    struct lk_device_move *read;  /* [MOVES * heads of a row] */
    struct lk_device_move *write; /* the same */
    struct lk_device_project *project;
    int n_head;
};

static void measure(const struct lk_cache *cache, struct lk_projecting *p) {
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; i < kv->n_level; i++) {
            const struct lk_level *level = &kv->level[i];
            if (!level->basis) continue;
            size_t row = lk_kv_width(kv), latent = (size_t)level->n_part * level->d_part,
                   angle = level->rope ? 2 * (size_t)level->rope->n_pair : 0;
            if (row > p->row) p->row = row;
            if (latent > p->latent) p->latent = latent;
            if (angle > p->angle) p->angle = angle;
            if (kv->n_head > p->n_head) p->n_head = kv->n_head;
        }
        for (int i = 0; i < kv->n_level; i++)
            if (kv->level[i].basis) {
                p->n_move += p->n_move < MOVES;
                break;
            }
    }
    p->row *= LK_MAX_MOVE, p->latent *= LK_MAX_MOVE, p->angle *= LK_MAX_MOVE;
    p->bytes = (size_t)p->n_move * (p->row + p->latent + p->angle) * sizeof(float);
}

static size_t list_bytes(const struct lk_projecting *p, size_t size) {
    return (size_t)p->n_move * p->n_head * size;
}

static bool new_room(struct lk_cache *cache, const struct lk_projecting *sizes, int side) {
    struct lk_device *device = cache->shape.device;
    struct lk_ledger *ledger = cache->ledger;
    struct lk_projecting *p = lk_alloc(ledger, LK_FOR_SCRATCH, sizeof *p);
    cache->projecting[side] = p;
    if (!p) return false;
    *p = *sizes;
    p->read = lk_alloc(ledger, LK_FOR_SCRATCH, list_bytes(p, sizeof *p->read));
    p->write = lk_alloc(ledger, LK_FOR_SCRATCH, list_bytes(p, sizeof *p->write));
    p->project = lk_alloc(ledger, LK_FOR_SCRATCH, list_bytes(p, sizeof *p->project));
    if (p->angle) p->angles = lk_alloc(ledger, LK_FOR_SCRATCH, p->angle * sizeof *p->angles);
    if (!p->read || !p->write || !p->project || (p->angle && !p->angles)) return false;
    if (!lk_ledger_add(cache->shape.device_ledger, LK_FOR_SCRATCH, p->bytes)) return false;
    if (!device->call->alloc(device, p->bytes, &p->at, NULL)) return true;
    lk_ledger_remove(cache->shape.device_ledger, LK_FOR_SCRATCH, p->bytes);
    return false;
}

uint64_t lk_projecting_bytes(const struct lk_cache *cache) {
    struct lk_projecting sizes = {0};
    measure(cache, &sizes);
    return 2 * (uint64_t)sizes.bytes;
}

bool lk_projecting_new(struct lk_cache *cache) {
    struct lk_projecting sizes = {0};
    measure(cache, &sizes);
    return sizes.n_move == 0 || (new_room(cache, &sizes, LK_K) && new_room(cache, &sizes, LK_V));
}

static void free_room(struct lk_cache *cache, int side) {
    struct lk_projecting *p = cache->projecting[side];
    struct lk_device *device = cache->shape.device;
    if (!p) return;
    if (p->at) {
        device->call->free(device, p->at, p->bytes);
        lk_ledger_remove(cache->shape.device_ledger, LK_FOR_SCRATCH, p->bytes);
    }
    lk_release(cache->ledger, LK_FOR_SCRATCH, p->angles, p->angle * sizeof *p->angles);
    lk_release(cache->ledger, LK_FOR_SCRATCH, p->read, list_bytes(p, sizeof *p->read));
    lk_release(cache->ledger, LK_FOR_SCRATCH, p->write, list_bytes(p, sizeof *p->write));
    lk_release(cache->ledger, LK_FOR_SCRATCH, p->project, list_bytes(p, sizeof *p->project));
    lk_release(cache->ledger, LK_FOR_SCRATCH, p, sizeof *p);
    cache->projecting[side] = NULL;
}

void lk_projecting_free(struct lk_cache *cache) {
    for (int side = 0; side < 2; side++) free_room(cache, side);
}

/* ---- a group of moves ---- */

/* Moves that run together, and how many commands they have. */
struct group {
    struct lk_cache *cache;
    struct lk_projecting *room;
    int n_move, n_read, n_project, n_write;
    const struct lk_move *rotated; /* whose angles are on the device, at `angles` */
    uint64_t angles;
};

static uint64_t room_of(const struct lk_projecting *p, int i, size_t before, size_t each) {
    return p->at + ((size_t)p->n_move * before + (size_t)i * each) * sizeof(float);
}

/* Angles by which the keys of the move are un-rotated. Moves of many layers have the same. */
static lk_status send_angles(struct group *g, const struct lk_move *m) {
    struct lk_projecting *p = g->room;
    struct lk_device *device = g->cache->shape.device;
    const struct lk_rope *rope = m->kv->level[m->to].rope;
    const struct lk_move *same = g->rotated;
    if (same && same->kv->level[same->to].rope == rope && same->pos == m->pos && same->n >= m->n)
        return LK_OK;
    g->rotated = m;
    g->angles = room_of(p, g->n_move, p->row + p->latent, p->angle);
    lk_rope_unrotate_angles(rope, m->pos, m->n, p->angles);
    return device->call->upload(device, g->angles, p->angles,
                                (size_t)m->n * rope->n_pair * 2 * sizeof(float), NULL);
}

/* The projection of one part of a move, or of all if their ranks are equal. */
static struct lk_device_project projection_of(const struct group *g, const struct lk_move *m,
                                              int part, int n_part, uint64_t rows,
                                              uint64_t latents) {
    const struct lk_kv *kv = m->kv;
    const struct lk_level *to = &kv->level[m->to];
    const struct lk_basis *basis = to->basis;
    size_t row = (size_t)part * basis->n_comp;
    uint64_t x = lk_move_decodes(m) ? rows : (uint64_t)(uintptr_t)m->x;
    struct lk_device_project project = {
        .from = x + (size_t)part * basis->width * sizeof(float),
        .to = latents + (size_t)part * to->d_part * sizeof(float),
        .down = to->there.down + lk_basis_numbers_bytes(basis->type, row * basis->width),
        .from_stride = (int32_t)lk_kv_width(kv),
        .to_stride = to->n_part * to->d_part,
        .to_part = to->d_part,
        .n_row = m->n,
        .n_part = n_part,
        .n_head = to->n_head,
        .d_head = kv->d_head,
        .rank = lk_level_part_channels(to, part),
        .n_comp = basis->n_comp,
        .type = basis->type == LK_BASIS_F32   ? LK_DEVICE_BASIS_F32
                : basis->type == LK_BASIS_F16 ? LK_DEVICE_BASIS_F16
                                              : LK_DEVICE_BASIS_Q8};
    if (to->there.down_scale) project.scale = to->there.down_scale + row * sizeof(float);
    if (to->there.mean) project.mean = to->there.mean + (size_t)part * basis->width * sizeof(float);
    if (!to->rope) return project;
    project.cos_sin = g->angles;
    project.n_pair = to->rope->n_pair;
    project.halves = to->rope->halves;
    return project;
}

static lk_status add_move(struct group *g, const struct lk_move *m) {
    const struct lk_kv *kv = m->kv;
    const struct lk_level *to = &kv->level[m->to];
    struct lk_projecting *p = g->room;
    struct lk_sigma_addresses sigma = {{kv->sigma_at[0], kv->sigma_at[1]}};
    uint64_t rows = room_of(p, g->n_move, 0, p->row),
             latents = room_of(p, g->n_move, p->row, p->latent);
    lk_status status = to->rope ? send_angles(g, m) : LK_OK;
    int step = to->part ? 1 : m->end_part - m->first_part;
    if (lk_move_decodes(m))
        g->n_read += lk_move_read_commands(m, &sigma, rows, p->read + g->n_read);
    for (int part = m->first_part; part < m->end_part; part += step)
        p->project[g->n_project++] = projection_of(g, m, part, step, rows, latents);
    g->n_write += lk_move_commands(m, &sigma, latents, p->write + g->n_write);
    g->n_move++;
    return status;
}

static lk_status run_group(struct group *g) {
    struct lk_device *device = g->cache->shape.device;
    struct lk_projecting *p = g->room;
    lk_status status = device->call->move(device, p->read, NULL, (size_t)g->n_read, NULL);
    if (!status) status = device->call->project(device, p->project, (size_t)g->n_project, NULL);
    if (!status) status = device->call->move(device, p->write, NULL, (size_t)g->n_write, NULL);
    *g = (struct group){.cache = g->cache, .room = p};
    return status;
}

lk_status lk_moves_project(struct lk_cache *cache, const struct lk_move *move, size_t n) {
    struct group g = {.cache = cache, .room = cache->projecting[move[0].kv->side]};
    lk_status status = LK_OK;
    for (size_t i = 0; i < n && !status; i++) {
        if (!lk_move_projects(&move[i])) continue;
        status = add_move(&g, &move[i]);
        if (!status && g.n_move == g.room->n_move) status = run_group(&g);
    }
    return status || g.n_move == 0 ? status : run_group(&g);
}
