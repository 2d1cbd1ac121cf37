#include "comm/mesh/mpi.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>

#include "base/dl.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "comm/mesh/mesh.h"
#include "mpi/mpi_table.h"

/* MPI has no wait with a time limit, so a wait looks again and again, with sleeps as short as a message takes. */
#define NAP_NS 20000
#define LEAVE_NAPS 50000 /* about a second */
#define ROOM_BYTES (256 << 10) /* bytes of a piece that MPI reduces itself */
#define TAGS 8192 /* four for each epoch, of which two are used; epochs of the store have tags of their own */

static const pd_mpi_table *mpi;
static int mpi_rank, mpi_size;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static pd_status failed(const char *what) { return pd_fail(PD_E_DIST, "mpi: %s: %s", what, mpi->text()); }

static pd_status open_library(const char *path) {
    const pd_mpi_table *table;
    void *handle;
    const char *const paths[] = {path, NULL};
    const pd_dl_symbol symbols[] = {{PD_MPI_TABLE, (void **)&table}, {0}};
    PD_TRY(pd_dl_open(paths, symbols, &handle));
    if (table->version != PD_MPI_VERSION) {
        pd_dl_close(handle);
        return pd_fail(PD_E_RUNTIME,
                       "mpi: %s belongs to another version of pydist (expected to be built with this one)", path);
    }
    if (table->start(&mpi_rank, &mpi_size))
        /* It stays open, since MPI cannot be unloaded. */
        return pd_fail(PD_E_RUNTIME, "mpi: cannot start: %s", table->text());
    mpi = table;
    return PD_OK;
}

pd_status pd_mpi_open(const char *path, int *rank, int *size) {
    pthread_mutex_lock(&opening);
    pd_status status = mpi ? PD_OK : open_library(path);
    pthread_mutex_unlock(&opening);
    if (status) return PD_TRAIL(status);
    *rank = mpi_rank;
    *size = mpi_size;
    return PD_OK;
}

const char *pd_mpi_name(void) { return mpi ? mpi->name() : NULL; }

pd_status pd_mpi_broadcast(void *data, size_t bytes) {
    if (!mpi)
        return pd_fail(PD_E_RUNTIME, "mpi: the library for MPI is not open (expected transport=\"mpi\" to open it)");
    return mpi->broadcast(data, bytes, 0) ? failed("broadcast") : PD_OK;
}

/* ---- the mesh ---------------------------------------------------------------------------------------------------- */

typedef struct outgoing { /* a frame: its head, and its data under the next tag */
    pd_mesh_frame head;
    pd_mpi_request requests[2];
    bool open[2]; /* being sent */
} outgoing;

typedef struct peer {
    outgoing out[PD_MESH_QUEUE]; /* emptied at a gate, all at once */
    int queued;
    pd_mesh_frame head; /* arriving */
    bool in_data;       /* the head has come, its data is arriving */
    bool listening;
    pd_mpi_request coming;
} peer;

typedef struct mesh {
    pd_mesh base;
    int rank, size, tag;
    const int *ranks; /* as in the plan */
    size_t bytes;
    char *const *parts;
    int sending; /* peers with something queued */
    pd_error error; /* kind PD_OK: none */
    atomic_bool woken;
    pd_mpi_comm own; /* made for the first reduction by MPI itself */
    pd_mpi_request reduction;
    bool reducing;   /* the request is open */
    void *room;
    peer peers[];
} mesh;

static int name(const mesh *m, int r) { return m->ranks ? m->ranks[r] : r; } /* the rank in MPI, and in messages */

static void give_up(mesh *m, int r, const char *what, const char *why) {
    if (m->error.kind) return;
    (void)pd_fail(PD_E_DIST, "mpi: rank %d cannot %s rank %d: %s", name(m, m->rank), what, name(m, r), why);
    pd_error_save(&m->error);
}

static pd_status check(const pd_mesh *base) {
    const mesh *m = (const mesh *)base;
    return m->error.kind ? pd_error_restore(&m->error) : PD_OK;
}

/* mpirun notices a dead rank and ends the job. */
static int64_t lost(const pd_mesh *base, int r, bool we_wait) { return (void)base, (void)r, (void)we_wait, 0; }

static void queue(pd_mesh *base, int r, pd_mesh_frame head, const void *data) {
    mesh *m = (mesh *)base;
    peer *p = &m->peers[r];
    if (p->queued == PD_MESH_QUEUE)
        give_up(m, r, "send to", "the queue is full: it holds more than a round of a collective sends");
    if (pd_fault_now(PD_FAULT_SEND)) give_up(m, r, "send to", "PYDIST_FAULT");
    if (m->error.kind) return;
    outgoing *o = &p->out[p->queued];
    *o = (outgoing){.head = head};
    o->open[0] = !mpi->send(name(m, r), m->tag, &o->head, sizeof o->head, &o->requests[0]);
    o->open[1] = o->open[0] && head.bytes && !mpi->send(name(m, r), m->tag + 1, data, head.bytes, &o->requests[1]);
    if (!o->open[0] || (head.bytes && !o->open[1])) give_up(m, r, "send to", mpi->text());
    m->sending += !p->queued++;
}

static void flush_peer(mesh *m, int r) {
    peer *p = &m->peers[r];
    for (int i = 0; i < p->queued; i++)
        for (int part = 0, done; part < 2; part++) {
            outgoing *o = &p->out[i];
            if (!o->open[part]) continue;
            if (mpi->test(&o->requests[part], &done)) give_up(m, r, "send to", mpi->text());
            else if (!done) return;
            o->open[part] = false;
        }
    m->sending -= p->queued > 0;
    p->queued = 0;
}

/* ---- MPI's own all_reduce: each group has a communicator, since groups have orders of their own ------------------ */

static pd_mpi_type type_of(pd_dtype dtype) {
    switch (dtype) {
    case PD_U8: return PD_MPI_U8;
    case PD_I8: return PD_MPI_I8;
    case PD_I16: return PD_MPI_I16;
    case PD_I32: return PD_MPI_I32;
    case PD_I64: return PD_MPI_I64;
    case PD_F32: return PD_MPI_F32;
    case PD_F64: return PD_MPI_F64;
    default: return PD_MPI_NONE; /* bool, and the 16-bit types, which must be summed in float32 */
    }
}

static void *room(const pd_mesh *base, pd_dtype dtype, pd_reduce op, size_t *bytes) {
    pd_mpi_type type = type_of(dtype);
    bool floats = type == PD_MPI_F32 || type == PD_MPI_F64, order = op == PD_REDUCE_MIN || op == PD_REDUCE_MAX;
    if (type == PD_MPI_NONE || (floats && order)) return NULL; /* MPI does not say what it does with NaN */
    *bytes = ROOM_BYTES;
    return ((const mesh *)base)->room;
}

static void reduce(pd_mesh *base, int64_t count, pd_dtype dtype, pd_reduce op) {
    static const pd_mpi_op ops[PD_REDUCE_COUNT] = {
        [PD_REDUCE_SUM] = PD_MPI_SUM,   [PD_REDUCE_AVG] = PD_MPI_SUM,   [PD_REDUCE_PREMUL_SUM] = PD_MPI_SUM,
        [PD_REDUCE_MIN] = PD_MPI_MIN,   [PD_REDUCE_MAX] = PD_MPI_MAX,   [PD_REDUCE_PRODUCT] = PD_MPI_PRODUCT,
        [PD_REDUCE_BAND] = PD_MPI_BAND, [PD_REDUCE_BOR] = PD_MPI_BOR,   [PD_REDUCE_BXOR] = PD_MPI_BXOR,
    };
    mesh *m = (mesh *)base;
    if (!m->own.opaque) {
        int ranks[PD_RANKS_MAX];
        for (int r = 0; r < m->size; r++) ranks[r] = name(m, r);
        if (mpi->group(ranks, m->size, m->tag, &m->own)) give_up(m, m->rank, "make a communicator of", mpi->text());
        else
            pd_log(PD_LOG_INFO, "rank %d: all_reduce uses MPI's own", name(m, m->rank));
    }
    if (m->error.kind) return;
    m->reducing = !mpi->all_reduce(&m->own, m->room, (int)count, type_of(dtype), ops[op], &m->reduction);
    if (!m->reducing) give_up(m, m->rank, "reduce at", mpi->text());
}

static bool is_reduced(mesh *m) {
    int done = 1;
    if (m->reducing && mpi->test(&m->reduction, &done)) give_up(m, m->rank, "reduce at", mpi->text());
    else if (done) m->reducing = false;
    return !m->reducing;
}

static bool flush(pd_mesh *base) {
    mesh *m = (mesh *)base;
    if (!is_reduced(m)) return false;
    for (int d = 1; m->sending && d < m->size; d++) flush_peer(m, (m->rank + d) % m->size);
    return !m->sending && !m->error.kind;
}

static void listen_to(mesh *m, int r) {
    peer *p = &m->peers[r];
    void *to = p->in_data ? m->parts[r] + p->head.at : (void *)&p->head;
    size_t bytes = p->in_data ? p->head.bytes : sizeof p->head;
    if (mpi->receive(name(m, r), m->tag + p->in_data, to, bytes, &p->coming))
        give_up(m, r, "receive from", mpi->text());
    else p->listening = true;
}

/* The frame, or its data, for which we have waited has come. */
static void take(mesh *m, int r) {
    peer *p = &m->peers[r];
    const pd_mesh_frame *f = &p->head;
    p->listening = false;
    if (p->in_data) {
        p->in_data = false;
        return;
    }
    size_t end = (size_t)f->at + (f->bytes ? f->bytes : sizeof(uint32_t));
    if (f->zero || end > m->bytes || (!f->bytes && f->at % sizeof(uint32_t))) give_up(m, r, "understand", "garbage");
    else if (f->bytes) p->in_data = true;
    else atomic_store_explicit((atomic_uint *)(void *)(m->parts[r] + f->at), f->value, memory_order_release);
}

static void pump(pd_mesh *base, int r) {
    mesh *m = (mesh *)base;
    peer *p = &m->peers[r];
    int done = 1;
    while (done && r != m->rank && !m->error.kind) {
        if (!p->listening) listen_to(m, r);
        if (!p->listening) return;
        if (mpi->test(&p->coming, &done)) give_up(m, r, "receive from", mpi->text());
        else if (done && pd_fault_now(PD_FAULT_RECV)) give_up(m, r, "receive from", "PYDIST_FAULT");
        else if (done) take(m, r);
    }
}

static void wait_for(pd_mesh *base, int64_t ns) {
    mesh *m = (mesh *)base;
    if (!atomic_exchange(&m->woken, false)) pd_os_sleep(ns < NAP_NS ? ns : NAP_NS);
    flush(base);
    for (int r = 0; r < m->size; r++) pump(base, r);
}

static void wake(pd_mesh *base) { atomic_store(&((mesh *)base)->woken, true); }

/* Memory that MPI still reads must not be freed. It gets a little time to finish; otherwise the memory is leaked. */
static void free_mesh(pd_mesh *base) {
    mesh *m = (mesh *)base;
    for (int i = 0; i < LEAVE_NAPS && !flush(base) && (m->sending || m->reducing); i++)
        pd_os_sleep(NAP_NS);
    for (int r = 0; r < m->size; r++)
        if (m->peers[r].listening) mpi->cancel(&m->peers[r].coming);
    if (!m->reducing) pd_free(m->room);
    if (!m->sending && !m->reducing) pd_free(m);
}

static pd_status make(const pd_mesh_plan *plan, pd_mesh **out) {
    mesh *m;
    if (!mpi)
        return pd_fail(PD_E_RUNTIME, "mpi: the library for MPI is not open (expected transport=\"mpi\" to open it)");
    if (plan->link->rank != mpi_rank || plan->link->world != mpi_size)
        return pd_fail(PD_E_VALUE, "mpi: MPI says that this process is rank %d of %d (expected %d of %d)", mpi_rank,
                       mpi_size, plan->link->rank, plan->link->world);
    if (plan->bytes > INT_MAX)
        return pd_fail(PD_E_VALUE, "mpi: the slots have %zu bytes in all (expected less than 2 GiB)", plan->bytes);
    PD_TRY(pd_calloc(sizeof *m + (size_t)plan->size * sizeof *m->peers, "mpi", &m));
    pd_status status = pd_malloc(ROOM_BYTES, "mpi", &m->room);
    if (status) {
        pd_free(m);
        return status;
    }
    m->base.kind = &pd_mesh_mpi;
    m->rank = plan->rank;
    m->size = plan->size;
    m->ranks = plan->ranks;
    m->tag = (int)(plan->epoch % TAGS) * 4 + (plan->epoch & PD_EPOCH_APART ? 2 : 0);
    m->bytes = plan->bytes;
    m->parts = plan->parts;
    *out = &m->base;
    return PD_OK;
}

const pd_mesh_kind pd_mesh_mpi = {
    .name = "mpi", .make = make, .free = free_mesh, .queue = queue, .flush = flush, .pump = pump, .wait = wait_for,
    .wake = wake, .check = check, .lost = lost, .room = room, .reduce = reduce,
};
