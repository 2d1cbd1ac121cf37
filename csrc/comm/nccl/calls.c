/* The calls of NCCL: making communicators, and each collective in NCCL's terms.

   A call of a non-blocking communicator may return "in progress": NCCL's own thread goes on with it, and nothing else
   may be called until it is done. settle() waits for that. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "comm/nccl/nccl_impl.h"
#include "kernels/kernels.h"

#define SPINS 200          /* looks at the state, of less than 1 us each */
#define SLEEP_NS 100000
#define GONE (-1)          /* for NCCL's result: the communicator has ended meanwhile */

/* ---- waiting for NCCL's own threads ------------------------------------------------------------------------------ */

static int state_of(pd_nccl *c) {
    int state = GONE;
    pthread_mutex_lock(&c->use);
    int failed = c->comm ? c->lib->CommGetAsyncError(c->comm, &state) : 0;
    pthread_mutex_unlock(&c->use);
    return failed ? failed : state;
}

static pd_status look(pd_nccl *c, const pd_work *w, int64_t since) {
    pd_group *g = c->g;
    PD_TRY(pd_group_heard(g, w));
    PD_TRY(pd_hooks_interrupt(g->hooks));
    if (pd_os_now() - since < g->timeout_ns) return PD_OK;
    char call[400];
    pd_work_text(g, w, call, sizeof call);
    return pd_fail(PD_E_TIMEOUT, "%s: NCCL has not begun this call after %.1f s", call, (double)g->timeout_ns * 1e-9);
}

static pd_status settle(pd_nccl *c, const pd_work *w, int result) {
    int64_t since = pd_os_now();
    pd_status status = PD_OK;
    if (result == PD_NCCL_OK || result == PD_NCCL_IN_PROGRESS) result = state_of(c);
    for (int i = 0; i < SPINS && result == PD_NCCL_IN_PROGRESS; i++) result = state_of(c);
    if (result == PD_NCCL_OK) return PD_OK;
    void *token = pd_host_release();
    while (!status && result == PD_NCCL_IN_PROGRESS) {
        pd_os_sleep(SLEEP_NS);
        result = state_of(c);
        if (result == PD_NCCL_IN_PROGRESS) status = look(c, w, since);
    }
    if (!status && result == GONE) status = pd_error_restore(&c->error);
    else if (!status && result != PD_NCCL_OK) status = pd_nccl_explain(c, w, result);
    pd_host_acquire(token);
    return status;
}

/* ---- a communicator ---------------------------------------------------------------------------------------------- */

/* All ranks get rank 0's identifier through the store. */
static pd_status share_id(pd_nccl *c, const pd_work *w, const char *key, pd_nccl_id *id) {
    pd_group *g = c->g;
    if (c->rank == 0) {
        int result = c->lib->GetUniqueId(id);
        if (result) return pd_nccl_explain(c, w, result);
        return pd_store_set(g->link, key, id, sizeof *id);
    }
    pd_store_reply r;
    pd_store_call call = {.verb = PD_STORE_GET, .key = key, .key_bytes = strlen(key), .handle = PD_NO_HANDLE,
                          .timeout_ns = g->timeout_ns, .stop = &g->abort};
    void *token = pd_host_release();
    pd_status status = g->link->ops->call(g->link, &call, &r);
    pd_host_acquire(token);
    if (status) {
        PD_TRY(pd_group_heard(g, w)); /* this error explains more */
        return status;
    }
    bool good = r.bytes == sizeof *id;
    if (good) memcpy(id, r.data, sizeof *id);
    pd_free(r.data);
    return good ? PD_OK : pd_fail(PD_E_DIST, "nccl: the unique id has %zu bytes (expected %zu)", r.bytes, sizeof *id);
}

pd_status pd_nccl_connect(pd_nccl *c, const pd_work *w) {
    pd_group *g = c->g;
    char key[64];
    pd_nccl_id id;
    pd_nccl_config config = PD_NCCL_NONBLOCKING;
    bool there;
    int low = g->rank < c->peer ? g->rank : c->peer, high = g->rank + c->peer - low;
    snprintf(key, sizeof key, "pd:%u.nccl", g->epoch);
    if (c->peer >= 0) snprintf(key, sizeof key, "pd:%u.nccl.%d.%d", g->epoch, low, high);
    PD_TRY(share_id(c, w, key, &id));
    pthread_mutex_lock(&c->use);
    int result = c->lib->CommInitRankConfig(&c->comm, c->size, id, c->rank, &config);
    pthread_mutex_unlock(&c->use);
    PD_TRY(settle(c, w, result));
    c->connected = true;
    pd_nccl_register(c);
    return c->rank ? PD_OK : pd_store_delete(g->link, key, &there); /* all ranks have read it */
}

/* ---- dtypes and operations --------------------------------------------------------------------------------------- */

static int type_of(pd_dtype t) {
    switch (t) {
    case PD_BOOL: case PD_U8: return PD_NCCL_U8;
    case PD_I8: return PD_NCCL_I8;
    case PD_I32: return PD_NCCL_I32;
    case PD_I64: return PD_NCCL_I64;
    case PD_F16: return PD_NCCL_F16;
    case PD_BF16: return PD_NCCL_BF16;
    case PD_F32: return PD_NCCL_F32;
    case PD_F64: return PD_NCCL_F64;
    default: return -1;
    }
}

/* NCCL's operation. bool is a byte of 0 or 1; AVG and PREMUL_SUM are sums here, as in algo/reduce.h. */
static int operation_of(pd_dtype t, pd_reduce op) {
    switch (op) {
    case PD_REDUCE_SUM: return t == PD_BOOL ? PD_NCCL_MAX : PD_NCCL_SUM;
    case PD_REDUCE_AVG: case PD_REDUCE_PREMUL_SUM: return PD_NCCL_SUM;
    case PD_REDUCE_PRODUCT: return t == PD_BOOL ? PD_NCCL_MIN : PD_NCCL_PRODUCT;
    case PD_REDUCE_MAX: return PD_NCCL_MAX;
    case PD_REDUCE_MIN: return PD_NCCL_MIN;
    case PD_REDUCE_BOR: return t == PD_BOOL ? PD_NCCL_MAX : -1;
    case PD_REDUCE_BAND: return t == PD_BOOL ? PD_NCCL_MIN : -1;
    default: return -1;
    }
}

static bool reduces(const pd_work *w) {
    return w->id.coll == PD_COLL_ALL_REDUCE || w->id.coll == PD_COLL_REDUCE || w->id.coll == PD_COLL_REDUCE_SCATTER ||
           w->id.coll == PD_COLL_REDUCE_SCATTER_PARTS;
}

pd_status pd_nccl_fits(const pd_work *w) {
    const pd_job *j = &w->job;
    const char *op = pd_collective_names[w->id.coll];
    if (!reduces(w)) return PD_OK;
    if (type_of(j->dtype) < 0)
        return pd_fail(PD_E_DTYPE, "%s: NCCL does not support %s (expected another dtype, or tensors on the CPU)", op,
                       pd_dtype_name(j->dtype));
    int operation = operation_of(j->dtype, j->reduce);
    if (operation < 0)
        return pd_fail(PD_E_DTYPE,
                       "%s: NCCL does not support reduce op %s of %s (expected another op, or tensors on the CPU)", op,
                       pd_reduce_names[j->reduce], pd_dtype_name(j->dtype));
    if (j->scale != 1 && operation != PD_NCCL_SUM)
        return pd_fail(PD_E_VALUE, "%s: scale is %g with reduce op %s on %s (expected SUM or AVG)", op, j->scale,
                       pd_reduce_names[j->reduce], w->device->name);
    return PD_OK;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

static int reduction(pd_nccl *c, const pd_job *j, int coll, int op) {
    const pd_nccl_library *lib = c->lib;
    size_t n = (size_t)j->count;
    int type = type_of(j->dtype), result;
    bool scaled = j->scale != 1;
    char factor[8];
    pd_alone_scalar(j->dtype, j->scale, factor); /* each input is multiplied by it before the sum */
    if (scaled && (result = lib->RedOpCreatePreMulSum(&op, factor, type, PD_NCCL_HOST_SCALAR, c->comm))) return result;
    switch (coll) {
    case PD_COLL_ALL_REDUCE: result = lib->AllReduce(j->from, j->to, n, type, op, c->comm, c->on); break;
    case PD_COLL_REDUCE: result = lib->Reduce(j->from, j->to, n, type, op, j->root, c->comm, c->on); break;
    default: result = lib->ReduceScatter(j->from, j->to, n, type, op, c->comm, c->on);
    }
    if (scaled) lib->RedOpDestroy(op, c->comm); /* the launch has copied it */
    return result;
}

/* The address of rank r's part. Senders of a gather and receivers of a scatter have only their own. */
static const char *sent(const pd_job *j, int coll, int r, size_t bytes) {
    return j->from + (coll == PD_COLL_GATHER ? 0 : (size_t)r * bytes);
}
static char *taken(const pd_job *j, int coll, int r, size_t bytes) {
    return j->to + (coll == PD_COLL_SCATTER ? 0 : (size_t)r * bytes);
}

/* gather, scatter and all_to_all: a group of messages, which NCCL moves at the same time. */
static int exchange(pd_nccl *c, const pd_job *j, int coll, size_t bytes) {
    const pd_nccl_library *lib = c->lib;
    int me = c->g->rank, result = lib->GroupStart();
    bool all = coll == PD_COLL_ALL_TO_ALL, sends = all || (coll == PD_COLL_SCATTER) == (me == j->root);
    for (int r = 0; r < c->g->size && !result; r++) {
        if (r == me || !(all || me == j->root || r == j->root)) continue;
        if (sends) result = lib->Send(sent(j, coll, r, bytes), bytes, PD_NCCL_U8, r, c->comm, c->on);
        if ((all || !sends) && !result)
            result = lib->Recv(taken(j, coll, r, bytes), bytes, PD_NCCL_U8, r, c->comm, c->on);
    }
    int end = lib->GroupEnd();
    return result ? result : end;
}

/* Collectives that move parts of different sizes, also as a group of messages. */
static int exchange_parts(pd_nccl *c, const pd_job *j) {
    const pd_nccl_library *lib = c->lib;
    int me = c->g->rank, result = lib->GroupStart();
    for (int r = 0; r < c->g->size && !result; r++) {
        size_t sent = pd_job_bytes(j, j->gives[r].count), taken = pd_job_bytes(j, j->takes[r].count);
        if (r != me && sent) result = lib->Send(j->gives[r].data, sent, PD_NCCL_U8, r, c->comm, c->on);
        if (r != me && taken && !result) result = lib->Recv(j->takes[r].data, taken, PD_NCCL_U8, r, c->comm, c->on);
    }
    int end = lib->GroupEnd();
    return result ? result : end;
}

/* Starts a collective. Data that is only moved is sent as bytes. */
static int start(pd_nccl *c, const pd_job *j, int coll) {
    const pd_nccl_library *lib = c->lib;
    size_t bytes = pd_job_bytes(j, j->count);
    switch (coll) {
    case PD_COLL_BROADCAST: return lib->Broadcast(j->from, j->to, bytes, PD_NCCL_U8, j->root, c->comm, c->on);
    case PD_COLL_ALL_GATHER: return lib->AllGather(j->from, j->to, bytes, PD_NCCL_U8, c->comm, c->on);
    case PD_COLL_GATHER: case PD_COLL_SCATTER: case PD_COLL_ALL_TO_ALL: return exchange(c, j, coll, bytes);
    case PD_COLL_ALL_GATHER_PARTS: case PD_COLL_ALL_TO_ALL_PARTS: return exchange_parts(c, j);
    default: return reduction(c, j, coll, operation_of(j->dtype, j->reduce));
    }
}

static pd_status copy_own(pd_nccl *c, const pd_job *j, int coll) {
    size_t bytes = pd_job_bytes(j, j->count);
    int me = c->g->rank;
    if (coll == PD_COLL_ALL_GATHER_PARTS || coll == PD_COLL_ALL_TO_ALL_PARTS) {
        const pd_part *from = &j->gives[me], *to = &j->takes[me];
        if (from->data == to->data || !to->count) return PD_OK;
        return c->device->copy(c->device, pd_collective_names[coll], PD_WITHIN, to->data, from->data,
                               pd_job_bytes(j, to->count), PD_NO_WAIT);
    }
    if (coll != PD_COLL_ALL_TO_ALL && !((coll == PD_COLL_GATHER || coll == PD_COLL_SCATTER) && me == j->root))
        return PD_OK;
    const char *from = sent(j, coll, me, bytes);
    char *to = taken(j, coll, me, bytes);
    return from == to ? PD_OK
                      : c->device->copy(c->device, pd_collective_names[coll], PD_WITHIN, to, from, bytes, PD_NO_WAIT);
}

/* Prepares the data: 16-bit types are copied to float32 for sums; an all_to_all in place sends from a copy. *j: the job
   for NCCL; *scratch: memory for the copy. */
static pd_status stage(pd_nccl *c, const pd_work *w, pd_job *j, void **scratch) {
    const pd_device *d = c->device;
    int64_t n = j->count * (w->id.coll == PD_COLL_REDUCE_SCATTER || w->id.coll == PD_COLL_ALL_TO_ALL ? c->g->size : 1);
    bool widens = reduces(w) && !c->g->fast && !w->narrow && (j->dtype == PD_F16 || j->dtype == PD_BF16);
    if (!widens && !(w->id.coll == PD_COLL_ALL_TO_ALL && j->from == j->to)) return PD_OK;
    PD_TRY(d->alloc(d, (size_t)n * (widens ? sizeof(float) : pd_dtype_size(j->dtype)), scratch));
    j->from = *scratch;
    if (!widens)
        return d->copy(d, pd_collective_names[w->id.coll], PD_WITHIN, *scratch, w->job.from, pd_job_bytes(j, n),
                       PD_NO_WAIT);
    pd_convert(PD_F32, j->dtype, n, w->job.from, *scratch);
    j->dtype = PD_F32;
    j->to = *scratch;
    if (w->id.coll == PD_COLL_REDUCE_SCATTER) j->to += pd_job_bytes(j, j->count) * (size_t)c->g->rank;
    return PD_OK;
}

/* A pair's messages, in the order of the list. */
static int send_batch(pd_nccl *c, const pd_batch *b) {
    const pd_nccl_library *lib = c->lib;
    int result = lib->GroupStart();
    for (int i = 0; i < b->n && !result; i++) {
        const pd_message *m = &b->messages[i];
        size_t bytes = (size_t)m->count * pd_dtype_size(m->dtype);
        if (m->peer != b->peer) continue;
        result = m->sends ? lib->Send(m->data, bytes, PD_NCCL_U8, !c->rank, c->comm, c->on)
                          : lib->Recv(m->data, bytes, PD_NCCL_U8, !c->rank, c->comm, c->on);
    }
    int end = lib->GroupEnd();
    return result ? result : end;
}

static int send_it(pd_nccl *c, const void *batch) { return send_batch(c, batch); }

typedef struct order { const pd_job *job; int coll; } order;
static int start_it(pd_nccl *c, const void *what) {
    const order *o = what;
    return start(c, o->job, o->coll);
}

pd_status pd_nccl_ask(pd_nccl *c, const pd_work *w, int (*call)(pd_nccl *, const void *), const void *what) {
    pthread_mutex_lock(&c->use);
    int result = c->comm ? call(c, what) : GONE;
    pthread_mutex_unlock(&c->use);
    return settle(c, w, result);
}

pd_status pd_nccl_run(pd_nccl *c, const pd_work *w, const pd_job *j, int coll) {
    return pd_nccl_ask(c, w, start_it, &(order){j, coll});
}

/* Each part is reduced to its rank. 16-bit types are summed in float32, with all parts in scratch memory. */
static pd_status reduce_parts(pd_nccl *c, const pd_work *w) {
    const pd_device *d = c->device;
    pd_job j = w->job;
    bool widens = !c->g->fast && (j.dtype == PD_F16 || j.dtype == PD_BF16);
    void *scratch = NULL;
    pd_status status = PD_OK;
    if (widens) PD_TRY(d->alloc(d, (size_t)w->job.count * sizeof(float), &scratch));
    if (widens) j.dtype = PD_F32;
    char *wide = scratch;
    for (j.root = 0; j.root < c->g->size && !status; j.root++) {
        const pd_part *part = &w->job.gives[j.root];
        bool own = j.root == c->g->rank;
        if (!part->count) continue;
        if (widens) pd_convert(PD_F32, w->job.dtype, part->count, part->data, wide);
        j.count = part->count;
        j.from = widens ? wide : part->data;
        j.to = widens ? wide : w->job.takes->data;
        status = pd_nccl_run(c, w, &j, PD_COLL_REDUCE);
        if (widens && own && !status) pd_convert(w->job.dtype, PD_F32, part->count, wide, w->job.takes->data);
        wide += widens ? pd_job_bytes(&j, part->count) : 0;
    }
    PD_THEN(pd_device_check(d, "reduce_scatter"));
    if (scratch) d->free(d, scratch, 0);
    return status;
}

static pd_status issue(pd_nccl *c, const pd_work *w) {
    const pd_device *d = c->device;
    pd_job j = w->job;
    int coll = w->id.coll;
    void *scratch = NULL;
    if (coll == PD_COLL_REDUCE_SCATTER_PARTS) return reduce_parts(c, w);
    if (j.blocks) return pd_nccl_sum_blocks(c, w);
    pd_status status = stage(c, w, &j, &scratch);
    PD_THEN(copy_own(c, &j, coll));
    PD_THEN(pd_nccl_run(c, w, &j, coll));
    if (!status && j.dtype != w->job.dtype && (coll != PD_COLL_REDUCE || c->g->rank == j.root))
        pd_convert(w->job.dtype, j.dtype, j.count, j.to, w->job.to);
    PD_THEN(pd_device_check(d, pd_collective_names[coll]));
    if (scratch) d->free(d, scratch, 0); /* the next user of it comes later on the stream */
    return status;
}

pd_status pd_nccl_issue(pd_nccl *c, const pd_work *w, const pd_batch *b) {
    const pd_device *was;
    void *stream = pd_cuda_stream(c->device);
    if (b) return pd_nccl_ask(c, w, send_it, b);
    bool takes = w->parts && pd_parts_total(c->g->size, w->job.takes);
    if (!w->job.count && !takes) return PD_OK;
    pd_cuda_set_stream(c->device, c->on); /* scratch memory and conversions go to this stream */
    pd_status status = pd_device_enter(c->device, &was);
    PD_THEN(issue(c, w));
    pd_device_here = was;
    pd_cuda_set_stream(c->device, stream);
    return status;
}
