/* How one collective runs: planning, and the pipeline of rounds and gates (algo.h). */
#include "comm/group/mover.h"

/* With order="fast": whether the mesh has an all_reduce of its own. *bytes: how many bytes it takes at most. */
static bool goes_outside(const pd_group *g, pd_job *j, size_t *bytes) {
    if (!g->fast || g->forced || !g->mesh || !g->mesh->kind->room) return false;
    return (j->room = g->mesh->kind->room(g->mesh, j->dtype, j->reduce, bytes)) != NULL;
}

/* Chooses algorithm and pieces. The choice depends only on what is equal on all ranks, so all choose the same. */
static void plan(pd_group *g, pd_work *w) {
    pd_job *j = &w->job;
    size_t bytes = (size_t)j->count * pd_dtype_size(j->dtype);
    size_t piece = g->slot < (size_t)g->tuning.piece ? g->slot : (size_t)g->tuning.piece;
    bool sums = w->id.coll == PD_COLL_ALL_REDUCE || w->id.coll == PD_COLL_REDUCE;
    bool hosts = g->local > 1 && (!j->blocks || j->blocks->hosts == g->size / g->local);
    w->algo = pd_plan_pick(w->id.coll, &g->tuning, hosts || g->forced != &pd_algo_hierarchical ? g->forced : NULL,
                           g->fast, hosts, bytes);
    if (sums && goes_outside(g, j, &piece)) w->algo = &pd_algo_outside;
    if (w->device) return; /* a mover's work uses only the board and has no pieces */
    w->direct = w->segment != NULL;
    j->rank = g->rank;
    j->size = g->size;
    j->slot = g->slot;
    j->share = g->share;
    j->memory = g->memory;
    j->peers = g->peers;
    j->in = g->in;
    j->schedule = w->algo->schedule;
    j->local = g->local;
    j->near = g->near_memory;
    j->messages = g->mesh != NULL;
    j->counted = &g->counted;
    j->block = (size_t)g->tuning.block;
    w->pieces = pd_plan_pieces(w->algo, j, piece, w->parts ? w->largest : j->count);
    if (j->blocks) j->stride = g->slot / (size_t)j->blocks->parts & ~(size_t)63;
}

/* Sends a peer the bytes of ours that it will read; `at`: where it will look for them. */
static void send_span(pd_group *g, int peer, pd_span s, const char *at) {
    pd_mesh_send(g->mesh, peer, (size_t)(at - (char *)g->boards[g->rank]) + s.at, s.data, s.bytes);
    g->counted.wrote[PD_LEVEL_MESSAGES] += (int64_t)s.bytes;
}

static void send_spans(pd_group *g, pd_span (*span)(const pd_job *, int64_t, int), const pd_job *j, int64_t k,
                       const char *at) {
    for (int d = 1; d < g->size; d++) { /* starting with the right neighbour, so that not all send to rank 0 first */
        int r = (g->rank + d) % g->size;
        send_span(g, r, span(j, k, r), at);
    }
}

/* For an algorithm in steps: sends what the peers will take in step s. */
static void offer(pd_group *g, const pd_work *w, int64_t k, int s) {
    for (int d = 1; g->mesh && d < g->size; d++) {
        int r = (g->rank + d) % g->size;
        send_span(g, r, w->algo->serve(&w->job, k, s, r), pd_job_slot(&w->job, g->rank, k));
    }
}

/* With a mesh, words travel by message, even to ranks of our host. For data in shared memory another word, in that
   memory, is released by the writer and acquired by the readers. */
static void near_release(pd_group *g) {
    if (g->near) atomic_fetch_add_explicit(&((pd_board *)g->near[g->rank].ptr)->step, 1, memory_order_release);
}

static void near_acquire(pd_group *g) {
    for (int r = 0; g->near && r < g->size; r++)
        if (g->near[r].ptr) atomic_load_explicit(&((pd_board *)g->near[r].ptr)->step, memory_order_acquire);
}

/* Copies our data to where the peers read it; what is the same for all of them is copied once. */
static void put_into(pd_group *g, const pd_algo *a, const pd_job *j, int64_t k, char *slot) {
    pd_span last = {0};
    if (g->mesh) {
        send_spans(g, a->put, j, k, slot);
        return;
    }
    for (int r = 0; r < j->size; r++) {
        if (r == j->rank) continue;
        pd_span s = a->put(j, k, r);
        if (!s.bytes || (s.data == last.data && s.at == last.at)) continue;
        memcpy(slot + s.at, s.data, s.bytes);
        pd_count_wrote(j, s.bytes);
        last = s;
    }
}

static void put(pd_group *g, const pd_work *w, int64_t k) {
    const pd_job *j = &w->job;
    char *slot = pd_job_slot(j, j->rank, k);
    if (w->algo->steps) {
        w->algo->load(j, k);
        near_release(g);
        offer(g, w, k, 0);
        return;
    }
    if (!j->blocks) {
        put_into(g, w->algo, j, k, slot);
        return;
    }
    pd_job part = *j;
    for (int i = 0; i < pd_job_own(j); i++, part.from += j->apart)
        put_into(g, w->algo, &part, k, slot + (size_t)i * j->stride);
}

static void open_gate(pd_group *g, pd_work *w, bool at_board, uint32_t target) {
    g->counted.steps++;
    w->at_board = at_board;
    w->target = target;
    w->arrived = 1; /* this rank itself */
}

static void post_step(pd_group *g, pd_work *w) {
    atomic_uint *step = &g->boards[g->rank]->step;
    atomic_store_explicit(step, ++g->step, memory_order_release);
    pd_gate_ring(g, step);
    open_gate(g, w, false, g->step);
}

/* Fails at once if a rank has given up the group before we begin: its line may be there, but it will not go on. */
pd_status pd_rounds_begin(pd_group *g, pd_work *w) {
    w->span = pd_timespan_begin();
    w->seq = ++g->seq;
    pd_flight_post(&g->flight, w->seq, &w->id, w->site);
    PD_TRY(pd_group_heard(g, w));
    plan(g, w);
    w->job.first = g->piece;
    if (!pd_parts_own_sizes(w)) g->piece += (uint32_t)w->pieces;
    w->not_put = w->direct;
    if (w->parts) pd_parts_begin(g, w);
    if (!w->not_put && w->pieces && (w->algo->put || w->algo->load)) put(g, w, 0);
    pd_line *l = &g->boards[g->rank]->line[w->seq & 1];
    l->id = w->id;
    l->hash = w->hash = pd_identity_hash(&w->id, g->epoch) ^ (pd_parts_own_sizes(w) ? 0 : w->sizes);
    l->balance = pd_parts_own_sizes(w) ? w->sizes : w->places;
    l->site = w->site;
    l->segment = w->direct ? w->segment->id : 0;
    l->offset = w->direct ? (uint64_t)(w->job.from - (char *)pd_segment_ptr(w->segment)) : 0;
    if (w->parts) l->segment = w->shows, l->offset = (uint64_t)(uintptr_t)w->job.gives;
    atomic_store_explicit(&l->seq, w->seq, memory_order_release);
    if (g->mesh) pd_gate_send_line(g, l);
    pd_gate_ring(g, &l->seq);
    open_gate(g, w, true, w->seq);
    atomic_store_explicit(&w->state, PD_WORK_POSTED, memory_order_relaxed);
    return PD_OK;
}

/* Compares the lines once all are there, and chooses the direct algorithm if all ranks' data are in the same segment.
   *again: only some ranks could do that; ranks that have not put piece 0 do it next, and one more gate follows. */
static pd_status meet(pd_group *g, pd_work *w, bool *again) {
    bool direct = w->direct, any = direct;
    uint32_t parity = w->seq & 1;
    size_t bytes = pd_job_bytes(&w->job, w->job.count);
    if (w->id.coll == PD_COLL_REDUCE_SCATTER) bytes *= (size_t)g->size;
    bytes += w->job.apart;
    for (int r = 0; r < g->size; r++) {
        const pd_line *l = &g->boards[r]->line[parity];
        if (__builtin_expect(l->hash != w->hash, 0) && g->check) return pd_group_mismatch(g, w);
        any |= l->segment != 0;
        direct = direct && l->segment == w->segment->id && l->offset + bytes <= w->segment->bytes;
    }
    *again = any && !direct;
    if (!direct) return PD_OK;
    for (int r = 0; r < g->size; r++)
        g->peers[r] = (char *)w->segment->parts[r].ptr + g->boards[r]->line[parity].offset;
    w->algo = pd_plan_direct(w->id.coll);
    w->pieces = 1;
    return PD_OK;
}

/* A round of an algorithm in steps; returns as move() does. */
static bool step(pd_group *g, pd_work *w) {
    int steps = w->algo->steps(&w->job), s = (int)((w->round - 1) % steps);
    int64_t k = (w->round - 1) / steps;
    near_acquire(g);
    w->algo->run(&w->job, k, s);
    near_release(g);
    if (w->algo == &pd_algo_outside && s == 0)
        g->mesh->kind->reduce(g->mesh, pd_job_count(&w->job, k), w->job.dtype, w->job.reduce);
    if (s + 1 < steps) {
        offer(g, w, k, s + 1);
        return true;
    }
    if (k + 1 == w->pieces) return false;
    put(g, w, k + 1);
    return true;
}

/* Makes the moves of a round. False: no gate has to follow. */
static bool move(pd_group *g, pd_work *w) {
    const pd_algo *a = w->algo;
    const pd_job *j = &w->job;
    int64_t k = w->round, mixed = k - 1, taken = k - a->depth;
    if (w->read) return k == 1; /* parts were read in place: all go on once all have read */
    if (!a->depth) {
        a->take(j, 0);
        return true;
    }
    if (a->steps) return step(g, w);
    if (taken >= 0) a->take(j, taken);
    if (a->put && k < w->pieces) put(g, w, k);
    if (a->mix && mixed < w->pieces) {
        a->mix(j, mixed);
        if (g->mesh) send_spans(g, a->give, j, mixed, pd_job_share(j, j->rank, mixed));
    }
    return taken < w->pieces - 1;
}

/* Runs as far as the gates allow. */
pd_status pd_rounds_run(pd_group *g, pd_work *w, bool *done) {
    *done = false;
    while (pd_gate_open(g, w)) {
        if (w->at_board) {
            bool again = false;
            PD_TRY(w->parts ? pd_parts_meet(g, w, &again) : meet(g, w, &again));
            if (w->read) PD_TRY(pd_parts_read(g, w));
            if (again) {
                if (w->not_put) put(g, w, 0);
                post_step(g, w);
                continue;
            }
        }
        w->round++;
        *done = !w->pieces || (!w->algo->depth && w->round > 1) || !move(g, w);
        if (*done) return w->mover ? w->mover->launch(w) : PD_OK;
        post_step(g, w);
    }
    return PD_OK;
}
