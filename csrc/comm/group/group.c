#include "comm/group/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/flags.h"
#include "base/mem.h"
#include "base/threads.h"
#include "comm/group/mover.h"
#include "comm/group/p2p.h"
#include "comm/group/readers.h"

#define BOARD_BYTES 4096
#define SLOT_BYTES (256 << 10)
#define READ_BYTES (8 << 20)
#define TURNS_READ_BYTES (2 << 20)
#define MESH_SPINS 50 /* looks at a socket, of about 0.4 us each */
#define SPINS 400 /* pauses of about 45 ns: some 20 us, which a peer that is almost there needs */

static pd_status choose(pd_group *g, const pd_group_options *o) {
    const char *algo = o && o->algo && *o->algo ? o->algo : pd_flags_get()->ALGO;
    g->fast = o && o->fast;
    for (size_t i = 0; o && i < o->tuning_count; i++) PD_TRY(pd_tuning_check(&o->tunings[i]));
    g->kind = o ? o->kind : NULL;
    g->mover = o ? o->mover : NULL;
    double timeout = o && o->timeout > 0 ? o->timeout : pd_flags_get()->TIMEOUT;
    double patience = o && o->patience > 0 ? o->patience : timeout;
    g->timeout_ns = timeout > 1e9 ? (int64_t)1e18 : (int64_t)(timeout * 1e9);
    g->patience_ns = patience > 1e9 ? (int64_t)1e18 : (int64_t)(patience * 1e9);
    g->warn_ns = (int64_t)(pd_flags_get()->WARN * 1e9);
    g->blocked_ns = (int64_t)(pd_flags_get()->BLOCKED * 1e9);
    g->check = pd_flags_get()->CHECK != 0 && !(o && o->unchecked);
    g->slot = o && o->slot ? (o->slot + 1023) & ~(size_t)1023 : SLOT_BYTES;
    if (g->slot < (size_t)g->size * 64)
        g->slot = (size_t)g->size * 64;                            /* room for some elements of every rank's part */
    g->share = (g->slot / (size_t)g->size + 2047) & ~(size_t)1023; /* its largest part: one more block of 64 elements */
    return pd_tuning_forced(algo, g->fast, &g->forced);
}

static pd_tuning tuning_of(const pd_group *g, const pd_group_options *o) {
    for (size_t i = 0; o && i < o->tuning_count; i++)
        if (o->tunings[i].world == g->size && (o->tunings[i].mesh != 0) == (g->mesh != NULL)) return o->tunings[i];
    return pd_tuning_default(g->mesh, g->size);
}

static bool has_near(const pd_group *g) {
    int first = g->rank - g->rank % g->local;
    for (int r = first; r < first + g->local; r++)
        if (!g->near || !g->near[r].ptr) return false;
    return true;
}

/* Measured (2 quiet cores; ms by slots, read in place): 2 ranks 4 MiB 0.26, 0.32; 16 MiB 2.4, 2.6; 64 MiB 9.2, 9.2. 4
   ranks, which take turns on the cores at each gate: 1 MiB 0.18, 0.31; 4 MiB 1.3, 1.4; 16 MiB 5.9, 4.8; 64 MiB 19,
   18.5. On a busy machine more gates cost more. */
static size_t read_from(const pd_group *g) {
    return g->size > pd_threads_cores() ? TURNS_READ_BYTES : READ_BYTES;
}

static void drop_peeks(pd_group *g) {
    pd_free(g->peeks);
    g->peeks = NULL;
}

static void try_peeks(pd_group *g) {
    bool works = !g->mesh && pd_flags_get()->PEEK;
    for (int r = 0; works && r < g->size; r++) works = pd_peek_works(&g->peeks[r]);
    if (!works) drop_peeks(g);
}

/* The first collective: all ranks are there, and use rank 0's tuning. */
static pd_status agree(pd_group *g) {
    struct {
        uint64_t epoch;
        pd_tuning tuning;
        uint64_t near;
        pd_peek peek;
        uint64_t read_from;
    } mine = {g->epoch, g->tuning, has_near(g), pd_peek_of(&g->word), read_from(g)}, *all;
    PD_TRY(pd_malloc((size_t)g->size * sizeof *all, "group", &all));
    pd_status status = pd_group_exchange(g, PD_COLL_INIT, 1, &mine, all, sizeof mine, 0);
    if (!status) g->tuning = all[0].tuning;
    if (!status) g->read_from = all[0].read_from;
    for (int r = 0; !status && r < g->size; r++)
        if (!all[r].near) g->local = 1; /* a rank cannot reach the memory of ranks on its host */
    if (g->local == 1 && g->forced == &pd_algo_hierarchical) g->forced = NULL;
    if (g->mesh && g->forced == &pd_algo_slot_sum) g->forced = NULL; /* mirrors go one way only */
    for (int r = 0; !status && g->peeks && r < g->size; r++) g->peeks[r] = all[r].peek;
    pd_free(all);
    if (!status) try_peeks(g);
    return status;
}

/* The offset in a part where the lanes of messages begin. */
static size_t lanes_at(const pd_group *g) { return (BOARD_BYTES + 2 * (g->slot + g->share) + 4095) & ~(size_t)4095; }

/* Allocates all that an event may look at; called before the group listens to events. */
static pd_status allocate(pd_group *g) {
    size_t n = (size_t)g->size;
    PD_TRY(pd_p2p_new(g->size, lanes_at(g), &g->p2p));
    PD_TRY(pd_calloc(n * sizeof *g->parts, "group", &g->parts));
    for (int r = 0; r < g->size; r++) g->parts[r].handle = -1;
    PD_TRY(pd_calloc(n * sizeof *g->boards, "group", &g->boards));
    PD_TRY(pd_calloc(n * sizeof *g->memory, "group", &g->memory));
    PD_TRY(pd_calloc(n * sizeof *g->peers, "group", &g->peers));
    PD_TRY(pd_calloc(n * sizeof *g->peeks, "group", &g->peeks));
    PD_TRY(pd_os_random(&g->word, sizeof g->word));
    return pd_calloc(PD_BLOCKS_OF_RANK * n * sizeof *g->in, "group", &g->in);
}

static void detach_parts(pd_group *g) {
    for (int r = 0; g->parts && g->transport && r < g->size; r++) g->transport->detach(&g->parts[r]);
}

/* How many consecutive ranks each host has, if there are at least two hosts and all have the same power of two of
   ranks, so that each host is a subtree of the tree. Else 1. */
static int ranks_per_host(const uint64_t *hosts, int size) {
    int local = 1;
    while (local < size && hosts[local] == hosts[0]) local++;
    if (size / local < 2 || size % local || local & (local - 1)) return 1;
    for (int r = 0; r < size; r++)
        if (hosts[r] != hosts[r - r % local]) return 1;
    return local;
}

static bool are_together(const uint64_t *hosts, int size) {
    for (int r = 1; r < size; r++)
        if (hosts[r] != hosts[0]) return false;
    return true;
}

/* Keeps the memory that the ranks of our host share, in addition to the mesh. */
static pd_status keep_near(pd_group *g) {
    size_t n = (size_t)g->size;
    int first = g->rank - g->rank % g->local;
    g->near_transport = g->transport;
    PD_TRY(pd_calloc(n * sizeof *g->near, "group", &g->near));
    PD_TRY(pd_calloc(n * sizeof *g->near_memory, "group", &g->near_memory));
    for (int r = first; r < first + g->local; r++) {
        g->near[r] = g->parts[r];
        if (g->near[r].ptr) g->near_memory[r] = (char *)g->near[r].ptr + BOARD_BYTES;
        g->parts[r] = (pd_region){.handle = -1};
    }
    return PD_OK;
}

/* For ranks on several hosts: private memory for each rank's part, and connections that fill it. */
static pd_status connect_mesh(pd_group *g, size_t bytes, bool near) {
    if (g->local > 1) PD_TRY(keep_near(g));
    detach_parts(g);
    g->transport = &pd_transport_inproc;
    g->spins = g->spins_max = near ? MESH_SPINS : 0;
    for (int r = 0; r < g->size; r++) PD_TRY(g->transport->alloc(bytes, &g->parts[r]));
    for (int r = 0; r < g->size; r++) g->peers[r] = g->parts[r].ptr;
    pd_mesh_plan plan = {.link = g->link,
                         .rank = g->rank,
                         .size = g->size,
                         .ranks = g->ranks,
                         .epoch = g->epoch,
                         .parts = g->peers,
                         .bytes = bytes,
                         .near = near,
                         .timeout_ns = g->patience_ns,
                         .stop = &g->abort};
    return (g->kind ? g->kind : &pd_mesh_tcp)->make(&plan, &g->mesh);
}

static pd_status connect_ranks(pd_group *g, const pd_group_options *o) {
    size_t lanes = lanes_at(g);
    size_t bytes = (lanes + pd_p2p_room(g->size) + 4095) & ~(size_t)4095;
    pd_placement placement = {0};
    PD_TRY(pd_malloc((size_t)g->size * sizeof *placement.hosts, "group", &placement.hosts));
    pd_status status = g->transport->alloc(bytes, &g->parts[g->rank]);
    PD_THEN(pd_parts_exchange(g, 0, bytes, g->parts, &placement));
    g->local = status ? 1 : ranks_per_host(placement.hosts, g->size);
    if (placement.far && are_together(placement.hosts, g->size)) PD_THEN(pd_parts_agree(g, &placement.apart));
    pd_free(placement.hosts);
    PD_TRY(status);
    if (placement.apart || g->kind) PD_TRY(connect_mesh(g, bytes, !placement.far));
    for (int r = 0; r < g->size; r++) {
        g->boards[r] = g->parts[r].ptr;
        g->memory[r] = (char *)g->parts[r].ptr + BOARD_BYTES;
#ifdef MADV_POPULATE_WRITE
        madvise(g->parts[r].ptr, lanes, MADV_POPULATE_WRITE); /* page faults happen now, not in the first collectives */
#endif
    }
    g->tuning = tuning_of(g, o);
    return agree(g);
}

static void free_memory(pd_group *g) {
    pthread_mutex_lock(&g->failure_lock);
    pd_mesh *mesh = g->mesh;
    g->mesh = NULL;
    pthread_mutex_unlock(&g->failure_lock);
    pd_mesh_free(mesh);
    detach_parts(g);
    for (int r = 0; g->near && r < g->size; r++) g->near_transport->detach(&g->near[r]);
    pd_free(g->near);
    pd_free(g->near_memory);
    g->near = NULL;
    g->near_memory = NULL;
    pd_free(g->parts);
    pd_free(g->boards);
    pd_free(g->memory);
    pd_free(g->peers);
    drop_peeks(g);
    pd_free(g->in);
    g->parts = NULL;
    g->boards = NULL;
    g->memory = g->peers = NULL;
    g->in = NULL;
}

static void free_group(pd_group *g) {
    pd_readers_free(g->readers);
    free_memory(g);
    pd_p2p_free(g->p2p, g->size);
    pd_flight_fini(&g->flight);
    pd_free(g->ranks);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->failure_lock);
    pthread_mutex_destroy(&g->segments_lock);
    pd_link_release(g->link);
    pd_free(g);
}

/* Our rank in the new group; -1: none. */
static int rank_in(const pd_link *link, const pd_group_options *o) {
    if (!o || !o->ranks) return link->rank;
    for (int i = 0; i < o->size; i++)
        if (o->ranks[i] == link->rank) return i;
    return -1;
}

/* Makes the group's table of ranks. Each rank of the link may be in it once, and ours must be. */
static pd_status seat(pd_group *g, const pd_group_options *o) {
    const pd_link *link = g->link;
    const int *ranks = o->ranks, size = o->size;
    g->rank = rank_in(link, o);
    if (size < 1 || size > link->world)
        return pd_fail(PD_E_VALUE, "new_group: got %d ranks (expected 1 to %d)", size, link->world);
    PD_TRY(pd_malloc((size_t)size * sizeof *ranks, "group", &g->ranks));
    for (int i = 0; i < size; i++) {
        if (ranks[i] < 0 || ranks[i] >= link->world)
            return pd_fail(PD_E_VALUE, "new_group: ranks contains %d (expected 0 to %d)", ranks[i], link->world - 1);
        for (int j = 0; j < i; j++)
            if (ranks[j] == ranks[i])
                return pd_fail(PD_E_VALUE, "new_group: ranks contains %d twice (expected each rank once)", ranks[i]);
        g->ranks[i] = ranks[i];
    }
    if (g->rank < 0)
        return pd_fail(PD_E_VALUE,
                       "new_group: ranks does not contain this rank, %d (expected the calling rank among them)",
                       link->rank);
    g->size = size;
    return PD_OK;
}

static pd_status make(pd_link *link, uint32_t epoch, const pd_group_options *o, pd_group **out) {
    pd_group *g;
    PD_TRY(pd_calloc(sizeof *g, "group", &g));
    atomic_init(&g->refs, 1);
    g->size = 1;
    g->tuning = pd_tuning_default(false, 1);
    g->epoch = epoch;
    g->forks = pd_forks;
    g->last = &g->first;
    g->transport = &pd_transport_inproc;
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->failure_lock, NULL);
    pthread_mutex_init(&g->segments_lock, NULL);
    if (link) {
        g->link = link;
        g->hooks = link->hooks;
        g->rank = link->rank;
        g->size = link->world;
        if (link->ops->transport) g->transport = link->ops->transport;
        pd_link_retain(link);
    }
    *out = g;
    if (link) PD_TRY(pd_flight_init(&g->flight, pd_flags_get()->FLIGHT));
    if (link && o && o->ranks) PD_TRY(seat(g, o));
    return choose(g, o);
}

/* Tells the other ranks, which wait or will come: they find the reason in the store, or hear it by an event. */
static void give_up(pd_link *link, uint32_t epoch, int rank, const pd_group *g) {
    pd_error e;
    pd_error_save(&e);
    pd_parts_refuse(link, epoch, 0, rank);
    pd_link_event event = {.kind = PD_EVENT_ABORT, .rank = link->rank, .epoch = epoch, .status = PD_E_DIST};
    if (!g || !g->abort) link->ops->tell(link, &event, e.text);
    pd_error_restore(&e);
}

pd_status pd_group_new(pd_link *link, const pd_group_options *o, pd_group **out) {
    pd_group *g = NULL;
    pd_status status = PD_OK;
    if (link) PD_TRY(pd_link_check(link));
    uint32_t epoch = o && o->epoch ? o->epoch : link ? atomic_fetch_add(&link->epochs, 1) + 1 : 1;
    PD_TRY_TO(fail, make(link, epoch, o, &g));
    if (g->size > 1) {
        g->spins = g->spins_max = g->transport == &pd_transport_shm && link->world <= pd_threads_cores() ? SPINS : 0;
        PD_TRY_TO(fail, allocate(g));
        g->listener.hear = pd_group_hear;
        g->listener.report = pd_group_report;
        g->listener.ranks = g->ranks;
        g->listener.size = g->size;
        pd_link_listen(link, &g->listener, epoch);
        PD_TRY_TO(fail, connect_ranks(g, o));
        pd_parts_forget(g, 0);
        pd_parts_forget(g, PD_PARTS_AGREED);
        g->transport->seal(&g->parts[g->rank]);
        if (g->near) g->near_transport->seal(&g->near[g->rank]);
    }
    *out = g;
    return PD_OK;
fail:
    /* The event that has ended the wait explains more than the wait's own error. */
    if (g && g->abort && status != PD_E_PYTHON) {
        pthread_mutex_lock(&g->failure_lock);
        pd_error e = g->failure;
        pthread_mutex_unlock(&g->failure_lock);
        status = pd_fail(e.kind, "init: %s", e.text);
        pd_error_set_rank(e.rank);
    }
    int rank = link ? rank_in(link, o) : 0;
    if (rank >= 0 && link && link->world > 1) give_up(link, epoch, rank, g);
    if (g && g->listener.hear) pd_link_unlisten(link, &g->listener);
    if (g) free_group(g);
    return status;
}

void pd_group_skip(pd_link *link) { atomic_fetch_add(&link->epochs, 1); }

void pd_group_retain(pd_group *g) { atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed); }

void pd_group_release(pd_group *g) {
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) > 1) return;
    if (pd_forked_since(g->forks)) return; /* a forked child owns nothing of it */
    pd_group_destroy(g);
    free_group(g);
}

pd_status pd_group_destroy(pd_group *g) {
    if (pd_forked_since(g->forks) || atomic_load(&g->destroyed)) return PD_OK;
    if (g->moving) PD_TRY(g->mover->drain(g));
    if (g->link) { /* ends another thread's wait in this group */
        pd_error e = {.kind = PD_E_DIST, .rank = -1};
        snprintf(e.text, sizeof e.text, "the group was destroyed on this rank");
        pd_group_hear(&g->listener, PD_WEIGHT_GONE, &e);
    }
    if (g->readers) pd_readers_written(g->readers);
    PD_TRY(pd_group_lock(g)); /* a collector of garbage may call this at any time: sections of other groups go on */
    bool first = !atomic_exchange(&g->destroyed, true);
    if (first && g->first) {
        (void)pd_fail(PD_E_DIST, "the group was destroyed before this collective was done (expected wait() first)");
        pd_group_fail(g, false);
    }
    if (first && g->size > 1) {
        pd_link_event event = {.kind = PD_EVENT_LEFT, .rank = g->link->rank, .epoch = g->epoch};
        if (!pd_link_check(g->link)) g->link->ops->tell(g->link, &event, "");
        pd_link_unlisten(g->link, &g->listener);
    }
    if (first) {
        if (g->moving) g->mover->end(g);
        if (g->p2p && !g->error.kind) pd_p2p_close(g);
        pd_p2p_end(g);
        pd_segments_detach(g);
        free_memory(g);
    }
    pd_group_leave(g);
    return PD_OK;
}

int pd_group_rank(const pd_group *g) { return g->rank; }
int pd_group_size(const pd_group *g) { return g->size; }
int pd_group_link_rank(const pd_group *g, int rank) { return pd_group_name(g, rank); }
uint32_t pd_group_epoch(const pd_group *g) { return g->epoch; }
bool pd_group_fast(const pd_group *g) { return g->fast; }
int pd_group_local(const pd_group *g) { return g->near ? g->local : 1; }
const pd_tuning *pd_group_tuning(const pd_group *g) { return &g->tuning; }
pd_cost pd_group_counted(const pd_group *g) { return g->counted; }
const char *pd_group_transport(const pd_group *g) {
    return g->size < 2 ? "none" : g->mesh ? g->mesh->kind->name : g->transport->name;
}

pd_status pd_group_check(pd_group *g) {
    if (pd_forked_since(g->forks))
        return pd_fail(PD_E_DIST,
                       "comm: this process was forked from rank %d, and a forked child has no groups (expected workers "
                       "started with spawn, or init in the child)",
                       pd_group_name(g, g->rank));
    if (atomic_load(&g->failed)) return pd_error_restore(&g->error);
    if (atomic_load(&g->destroyed))
        return pd_fail(PD_E_DIST, "comm: the group was destroyed on rank %d", pd_group_name(g, g->rank));
    return PD_OK;
}
