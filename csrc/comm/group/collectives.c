/* The collectives: they make works of their arguments, and the queue runs these. */
#include "base/mem.h"
#include "comm/group/mover.h"
#include "comm/group/p2p.h"
#include "comm/group/readers.h"

static pd_work work_of(pd_group *g, pd_collective coll, pd_dtype dtype, int64_t count, const void *from, void *to,
                       uint64_t site) {
    return (pd_work){
        .group = g, .site = site, .id = {.coll = (uint8_t)coll, .dtype = (uint8_t)dtype, .count = count, .scale = 1},
        .job = {.dtype = dtype, .scale = 1, .from = from, .to = to, .count = count, .root = -1},
    };
}

/* The data are on the device of the caller's ops (device/device.h). */
static void with_device(pd_work *w) {
    if (pd_device_here->kind == PD_DEVICE_CPU) return;
    w->device = pd_device_here;
    w->mover = w->group->size == 1 ? &pd_mover_alone : w->group->mover;
    w->id.device = (uint8_t)pd_device_here->kind;
}

static void with_reduce(pd_work *w, pd_reduce op, double scale) {
    w->id.reduce = (uint8_t)op;
    w->id.scale = scale;
    w->job.reduce = op;
    w->job.scale = op == PD_REDUCE_AVG ? scale / w->group->size : scale;
}

static pd_status with_root(pd_work *w, int root) {
    if (root < 0 || root >= w->group->size)
        return pd_fail(PD_E_VALUE, "%s: root is %d (expected 0 to %d)", pd_collective_names[w->id.coll], root,
                       w->group->size - 1);
    w->id.root = w->job.root = root;
    return PD_OK;
}

static pd_status check_data(const char *op, int64_t count, pd_dtype dtype) {
    if (dtype < 0 || dtype >= PD_DTYPE_COUNT)
        return pd_fail(PD_E_VALUE, "%s: the dtype is unknown: got number %d (expected the number of a dtype)", op,
                       (int)dtype);
    if (count < 0 || count > INT64_MAX / PD_RANKS_MAX / 1024)
        return pd_fail(PD_E_VALUE, "%s: got %lld elements (expected at least 0 and less than 2^41)", op,
                       (long long)count);
    return PD_OK;
}

static pd_status reduction(pd_group *g, pd_collective coll, const void *in, void *out, int64_t count, pd_dtype dtype,
                           pd_reduce op, double scale, int root, uint64_t site, pd_work **work) {
    PD_TRY(check_data(pd_collective_names[coll], count, dtype));
    PD_TRY(pd_reduce_check(pd_collective_names[coll], dtype, op, scale));
    pd_work w = work_of(g, coll, dtype, count, in, out, site);
    with_device(&w);
    with_reduce(&w, op, scale);
    if (coll == PD_COLL_REDUCE) PD_TRY(with_root(&w, root));
    return pd_group_submit(&w, work);
}

pd_status pd_group_all_reduce(pd_group *g, void *buf, int64_t count, pd_dtype dtype, pd_reduce op, double scale,
                              uint64_t site, pd_work **work) {
    return reduction(g, PD_COLL_ALL_REDUCE, buf, buf, count, dtype, op, scale, 0, site, work);
}

/* A sum over blocks of logical shards. */
static pd_status sum_of_blocks(pd_group *g, pd_collective coll, const void *in, void *out, size_t apart, int64_t count,
                               pd_dtype dtype, pd_blocks *b, double scale, uint64_t site, pd_work **work) {
    const char *op = pd_collective_names[coll];
    PD_TRY(check_data(op, count, dtype));
    const bool leaves = b->count == b->shards && pd_device_here->kind != PD_DEVICE_CPU;
    if (dtype != PD_F32 && dtype != PD_F64 && !(leaves && (dtype == PD_F16 || dtype == PD_BF16)))
        return pd_fail(PD_E_DTYPE, "%s: sums of logical shards are %s (expected float32 or float64)", op,
                       pd_dtype_name(dtype));
    if (b->ranks != g->size)
        return pd_fail(PD_E_VALUE, "%s: the logical shards are dealt out to %d ranks (expected the group's %d)", op,
                       b->ranks, g->size);
    if (g->fast)
        return pd_fail(PD_E_VALUE,
                       "%s: the group has order=\"fast\", in which sums have other bits for other numbers of ranks "
                       "(expected order=\"fixed\" with logical shards)", op);
    pd_work w = work_of(g, coll, dtype, count, in, out, site);
    with_device(&w);
    with_reduce(&w, PD_REDUCE_SUM, scale);
    w.blocks = b;
    w.job.blocks = b;
    w.job.apart = b->parts > 1 ? apart : 0;
    w.id.root = b->hash;
    w.sizes = w.job.apart;
    return pd_group_submit(&w, work);
}

pd_status pd_group_all_reduce_blocks(pd_group *g, void *buf, size_t apart, int64_t count, pd_dtype dtype, pd_blocks *b,
                                     double scale, uint64_t site, pd_work **work) {
    return sum_of_blocks(g, PD_COLL_ALL_REDUCE, buf, buf, apart, count, dtype, b, scale, site, work);
}

pd_status pd_group_reduce_scatter_blocks(pd_group *g, const void *in, size_t apart, void *out, int64_t count,
                                         pd_dtype dtype, pd_blocks *b, double scale, uint64_t site, pd_work **work) {
    return sum_of_blocks(g, PD_COLL_REDUCE_SCATTER, in, out, apart, count, dtype, b, scale, site, work);
}

pd_status pd_group_all_reduce_narrow(pd_group *g, void *buf, int64_t count, pd_dtype dtype, pd_work **work) {
    pd_work w = work_of(g, PD_COLL_ALL_REDUCE, dtype, count, buf, buf, 0);
    PD_TRY(check_data("all_reduce", count, dtype));
    with_device(&w);
    with_reduce(&w, PD_REDUCE_SUM, 1);
    w.narrow = true;
    return pd_group_submit(&w, work);
}

pd_status pd_group_reduce_scatter(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, pd_reduce op,
                                  double scale, uint64_t site, pd_work **work) {
    return reduction(g, PD_COLL_REDUCE_SCATTER, in, out, count, dtype, op, scale, 0, site, work);
}

pd_status pd_group_reduce(pd_group *g, void *buf, int64_t count, pd_dtype dtype, pd_reduce op, int root, uint64_t site,
                          pd_work **work) {
    return reduction(g, PD_COLL_REDUCE, buf, buf, count, dtype, op, 1, root, site, work);
}

/* A collective that moves data and sums nothing; `root` NULL: it has no root. */
static pd_status movement(pd_group *g, pd_collective coll, const void *in, void *out, int64_t count, pd_dtype dtype,
                          const int *root, uint64_t site, pd_work **work) {
    PD_TRY(check_data(pd_collective_names[coll], count, dtype));
    pd_work w = work_of(g, coll, dtype, count, in, out, site);
    with_device(&w);
    if (root) PD_TRY(with_root(&w, *root));
    return pd_group_submit(&w, work);
}

pd_status pd_group_broadcast(pd_group *g, void *buf, int64_t count, pd_dtype dtype, int root, uint64_t site,
                             pd_work **work) {
    return movement(g, PD_COLL_BROADCAST, buf, buf, count, dtype, &root, site, work);
}

pd_status pd_group_all_gather(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, uint64_t site,
                              pd_work **work) {
    return movement(g, PD_COLL_ALL_GATHER, in, out, count, dtype, NULL, site, work);
}

pd_status pd_group_gather(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, int root,
                          uint64_t site, pd_work **work) {
    return movement(g, PD_COLL_GATHER, in, out, count, dtype, &root, site, work);
}

pd_status pd_group_scatter(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, int root,
                           uint64_t site, pd_work **work) {
    return movement(g, PD_COLL_SCATTER, in, out, count, dtype, &root, site, work);
}

pd_status pd_group_all_to_all(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, uint64_t site,
                              pd_work **work) {
    return movement(g, PD_COLL_ALL_TO_ALL, in, out, count, dtype, NULL, site, work);
}

/* ---- parts of different sizes ------------------------------------------------------------------------------------ */

static pd_status check_parts(const pd_group *g, const char *op, const char *name, const pd_part *parts,
                             pd_dtype dtype) {
    int64_t sum = 0;
    for (int r = 0; r < g->size; r++) {
        PD_TRY(check_data(op, parts[r].count, dtype));
        sum += parts[r].count; /* cannot overflow, even with the largest number of ranks */
    }
    if (sum <= INT64_MAX / PD_RANKS_MAX / 1024) return PD_OK;
    return pd_fail(PD_E_VALUE, "%s: %s has %lld elements in all (expected less than 2^41)", op, name, (long long)sum);
}

/* Allocates the work's table: the parts that it gives, then those that it takes. */
static pd_status new_table(pd_work *w) {
    size_t size = (size_t)w->group->size;
    PD_TRY(pd_malloc(2 * size * sizeof *w->parts, "work", &w->parts));
    w->job.gives = w->parts;
    w->job.takes = w->parts + size;
    return PD_OK;
}

/* For sizes that must be the same list on all ranks: puts its hash into the identity. */
static void with_list(pd_work *w, const pd_part *parts) {
    w->largest = pd_parts_largest(w->group->size, parts);
    w->sizes = pd_parts_hash(w->group->size, parts);
    w->id.count = w->job.count = pd_parts_total(w->group->size, parts);
}

static pd_status submit_table(pd_work *w, pd_work **work) {
    w->job.from = w->parts[0].data; /* for a world of one */
    w->job.to = w->parts[w->group->size].data;
    pd_status status = pd_group_submit(w, work);
    pd_free(w->parts); /* NULL if the queue has taken it */
    return status;
}

pd_status pd_group_all_to_all_parts(pd_group *g, const pd_part *in, const pd_part *out, pd_dtype dtype, int along,
                                    uint64_t site, pd_work **work) {
    pd_work w = work_of(g, PD_COLL_ALL_TO_ALL_PARTS, dtype, 0, NULL, NULL, site);
    w.id.root = along;
    PD_TRY(check_parts(g, "all_to_all", "input", in, dtype));
    PD_TRY(check_parts(g, "all_to_all", "output", out, dtype));
    if (g->size == 1 && in->count != out->count)
        return pd_fail(PD_E_VALUE, "all_to_all: input has %lld elements, output %lld (expected the same number)",
                       (long long)in->count, (long long)out->count);
    with_device(&w);
    PD_TRY(new_table(&w));
    memcpy(w.parts, in, (size_t)g->size * sizeof *in);
    memcpy(w.parts + g->size, out, (size_t)g->size * sizeof *out);
    w.id.count = w.largest = pd_parts_largest(g->size, in);
    w.job.count = pd_parts_total(g->size, in);
    w.sizes = pd_parts_balance(g->rank, g->size, in, out);
    return submit_table(&w, work);
}

pd_status pd_group_all_gather_parts(pd_group *g, const void *in, const pd_part *out, pd_dtype dtype, int along,
                                    uint64_t site, pd_work **work) {
    pd_work w = work_of(g, PD_COLL_ALL_GATHER_PARTS, dtype, 0, in, NULL, site);
    w.id.root = along;
    PD_TRY(check_parts(g, "all_gather", "output", out, dtype));
    with_device(&w);
    PD_TRY(new_table(&w));
    for (int r = 0; r < g->size; r++) w.parts[r] = (pd_part){(char *)(uintptr_t)in, out[g->rank].count};
    memcpy(w.parts + g->size, out, (size_t)g->size * sizeof *out);
    with_list(&w, out);
    return submit_table(&w, work);
}

pd_status pd_group_reduce_scatter_parts(pd_group *g, const pd_part *in, void *out, pd_dtype dtype, pd_reduce op,
                                        double scale, int along, uint64_t site, pd_work **work) {
    pd_work w = work_of(g, PD_COLL_REDUCE_SCATTER_PARTS, dtype, 0, NULL, out, site);
    w.id.root = along;
    PD_TRY(check_parts(g, "reduce_scatter", "input", in, dtype));
    PD_TRY(pd_reduce_check("reduce_scatter", dtype, op, scale));
    with_device(&w);
    with_reduce(&w, op, scale);
    PD_TRY(new_table(&w));
    memcpy(w.parts, in, (size_t)g->size * sizeof *in);
    for (int r = 0; r < g->size; r++) w.parts[g->size + r] = (pd_part){out, in[g->rank].count};
    with_list(&w, in);
    return submit_table(&w, work);
}

pd_status pd_group_barrier(pd_group *g, uint64_t site, pd_work **work) {
    pd_work w = work_of(g, PD_COLL_BARRIER, PD_U8, 0, NULL, NULL, site);
    return pd_group_submit(&w, work);
}

pd_status pd_group_reduce_gate(pd_group *g, int unit, int64_t count, pd_dtype dtype, double scale, uint64_t site,
                               pd_work **work) {
    pd_work w = work_of(g, PD_COLL_REDUCE_UNIT, dtype, 0, NULL, NULL, site);
    w.id.root = unit;
    w.id.count = count;
    w.id.scale = scale;
    return pd_group_submit(&w, work);
}

pd_status pd_group_write_gate(pd_group *g, uint64_t site) {
    pd_work w = work_of(g, PD_COLL_WRITE_SHARDS, PD_U8, 0, NULL, NULL, site);
    return pd_group_submit(&w, NULL);
}

pd_status pd_group_exchange(pd_group *g, pd_collective coll, double tag, const void *mine, void *all, size_t bytes,
                            uint64_t site) {
    pd_work w = work_of(g, coll, PD_U8, (int64_t)bytes, mine, all, site);
    w.id.scale = tag;
    return pd_group_submit(&w, NULL);
}

/* A message: its peer is another rank of the group. */
static pd_status message(pd_work *w, int peer, int tag, pd_work **out) {
    const pd_group *g = w->group;
    const char *name = pd_collective_names[w->id.coll];
    if (peer < -(w->id.coll == PD_COLL_RECV) || peer >= g->size)
        return pd_fail(PD_E_VALUE, "%s: the peer is rank %d (expected 0 to %d)", name, peer, g->size - 1);
    if (peer == g->rank || g->size == 1)
        return pd_fail(PD_E_VALUE, "%s: the peer is rank %d, this rank itself (expected another rank)", name,
                       pd_group_name(g, g->rank));
    pd_readers_written_here();
    w->peer = peer;
    w->tag = tag;
    w->id.root = peer < 0 ? -1 : pd_group_name(g, peer);
    w->id.scale = tag;
    return pd_p2p_start(w, out);
}

pd_status pd_group_send(pd_group *g, const void *buf, int64_t count, pd_dtype dtype, int dst, int tag, uint64_t site,
                        pd_work **work) {
    PD_TRY(check_data("send", count, dtype));
    pd_work w = work_of(g, PD_COLL_SEND, dtype, count, buf, NULL, site);
    return message(&w, dst, tag, work);
}

pd_status pd_group_recv(pd_group *g, void *buf, int64_t count, pd_dtype dtype, int src, int tag, uint64_t site,
                        pd_work **work) {
    PD_TRY(check_data("recv", count, dtype));
    pd_work w = work_of(g, PD_COLL_RECV, dtype, count, NULL, buf, site);
    return message(&w, src, tag, work);
}
