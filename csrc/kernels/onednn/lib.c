#if defined(PD_HAVE_ONEDNN) && PD_HAVE_ONEDNN
#include "kernels/onednn/lib.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dl.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/threads.h"

/* ---- opening ---- */

pd_dnn_table pd_dnn;
dnnl_engine_t pd_dnn_engine;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all that is static here */
static _Atomic int state;                                /* 0 not tried, 1 open, -1 not there */
#define PATHS 16
static char *given[PATHS];
static int ngiven;
static char version_text[48];
/* Functions of the OpenMP that the library uses, which may not be ours; NULL: it uses none (SEQ). */
static int (*omp_get)(void);
static void (*omp_set)(int);

static const pd_dl_symbol symbols[] = {
#define FUNCTION(name) {"dnnl_" #name, (void **)&pd_dnn.name},
    PD_DNN_FUNCTIONS(FUNCTION)
#undef FUNCTION
    {NULL, NULL}};

void pd_onednn_paths(const char *const *paths, int count) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < ngiven; i++) free(given[i]);
    ngiven = 0;
    for (int i = 0; i < count && ngiven < PATHS; i++)
        if ((given[ngiven] = strdup(paths[i]))) ngiven++;
    if (state < 0) state = 0; /* new places: try again */
    pthread_mutex_unlock(&lock);
}

static const char *runtime_name(unsigned r) {
    return r == DNNL_RUNTIME_OMP ? "OMP" : r == DNNL_RUNTIME_SEQ ? "SEQ" : "other";
}

static int try_open(void) {
    if (!pd_flags_get()->ONEDNN) return -1;
    const char *paths[PATHS + 2];
    int n = 0;
    for (int i = 0; i < ngiven; i++) paths[n++] = given[i];
    paths[n++] = "libdnnl.so.3";
    paths[n] = NULL;
    void *handle = NULL;
    if (pd_dl_open(paths, symbols, &handle) != PD_OK) {
        pd_log(PD_LOG_INFO, "oneDNN: %s: using the portable kernels", pd_error_get()->text);
        return -1;
    }
    const dnnl_version_t *v = pd_dnn.version();
    if (v->major != DNNL_VERSION_MAJOR || (v->cpu_runtime != DNNL_RUNTIME_OMP && v->cpu_runtime != DNNL_RUNTIME_SEQ)) {
        pd_log(PD_LOG_WARN,
               "oneDNN %d.%d.%d with CPU runtime %u is unsupported (expected version %d, runtime OMP or SEQ): using "
               "the portable kernels",
               v->major, v->minor, v->patch, v->cpu_runtime, DNNL_VERSION_MAJOR);
        pd_dl_close(handle);
        return -1;
    }
    if (pd_dnn.engine_create(&pd_dnn_engine, dnnl_cpu, 0) != dnnl_success) {
        pd_log(PD_LOG_WARN, "oneDNN has no CPU engine on this machine: using the portable kernels");
        pd_dl_close(handle);
        return -1;
    }
    *(void **)&omp_get = pd_dl_find(handle, "omp_get_max_threads");
    *(void **)&omp_set = pd_dl_find(handle, "omp_set_num_threads");
    pd_dnn.set_primitive_cache_capacity(0); /* our own cache is enough, and does not keep what we have dropped */
    snprintf(version_text, sizeof version_text, "%d.%d.%d (%s)", v->major, v->minor, v->patch,
             runtime_name(v->cpu_runtime));
    return 1;
}

/* Whether the library is there and usable; tries once. */
static bool is_open(void) {
    if (state == 0) {
        pthread_mutex_lock(&lock);
        if (state == 0) state = try_open();
        pthread_mutex_unlock(&lock);
    }
    return state > 0;
}
const char *pd_onednn_version(void) { return is_open() ? version_text : NULL; }

static bool has_isa(int need) {
    static _Atomic int isa = -1;
    if (isa < 0) isa = (int)pd_dnn.get_effective_cpu_isa();
    return (isa & need) == need;
}
bool pd_dnn_has_avx512(void) { return is_open() && has_isa(dnnl_cpu_isa_avx512_core); }

bool pd_dnn_serves(pd_dtype t) {
    if (t != PD_F32 && t != PD_BF16 && t != PD_F16) return false;
    if (!is_open()) return false;
    if (t == PD_F32) return true;
    return has_isa(t == PD_BF16 ? dnnl_cpu_isa_avx512_core_bf16 : dnnl_cpu_isa_avx512_core_fp16);
}
dnnl_data_type_t pd_dnn_type(pd_dtype t) { return t == PD_BF16 ? dnnl_bf16 : t == PD_F16 ? dnnl_f16 : dnnl_f32; }

/* ---- threads: the library asks its OpenMP for the calling thread's count ---- */

static int threads_push(int threads) {
    if (!omp_get || !omp_set) return threads;
    int was = omp_get();
    if (was != threads) omp_set(threads);
    return was;
}
static void threads_pop(int was, int threads) {
    if (was != threads) omp_set(was);
}

/* ---- plans ---- */

#define PLANS 256  /* kept at most */
#define TABLE 1024 /* a power of two */

static pd_dnn_plan *table[TABLE]; /* open addressing; guarded by the lock */
static int64_t count;
static uint64_t now;

static _Thread_local bool starved; /* a plan could not be made for lack of memory */

pd_status pd_onednn_check_memory(void) {
    if (!starved) return PD_OK;
    starved = false;
    return pd_fail(PD_E_MEMORY, "oneDNN: out of memory for a primitive");
}

static void set_free(pd_dnn_set *s) {
    if (!s) return;
    for (int i = 0; i < PD_DNN_STEPS; i++)
        for (int a = 0; a < PD_DNN_ARGS; a++)
            if (s->args[i][a].memory) pd_dnn.memory_destroy(s->args[i][a].memory);
    if (s->stream) pd_dnn.stream_destroy(s->stream);
    pd_free(s);
}

static pd_dnn_set *set_new(const pd_dnn_plan *p) {
    pd_dnn_set *s = NULL;
    if (pd_calloc(sizeof *s, "oneDNN arguments", &s) != PD_OK) return NULL;
    bool good = pd_dnn.stream_create(&s->stream, pd_dnn_engine, dnnl_stream_default_flags) == dnnl_success;
    for (int i = 0; i < p->nsteps && good; i++)
        for (int a = 0; a < p->steps[i].nargs && good; a++) {
            s->args[i][a].arg = p->steps[i].arg[a];
            good = pd_dnn.memory_create(&s->args[i][a].memory, p->steps[i].md[a], pd_dnn_engine, DNNL_MEMORY_NONE) ==
                   dnnl_success;
        }
    if (good) return s;
    set_free(s);
    pd_fail(PD_E_MEMORY, "oneDNN: out of memory for the arguments of a primitive");
    return NULL;
}

static void plan_free(pd_dnn_plan *p) {
    for (int i = 0; i < PD_DNN_SPARES; i++) set_free(p->spare[i]);
    for (int i = 0; i < PD_DNN_STEPS; i++)
        if (p->steps[i].primitive) pd_dnn.primitive_destroy(p->steps[i].primitive);
    pd_free(p);
}
void pd_dnn_plan_release(pd_dnn_plan *p) {
    if (p && __atomic_sub_fetch(&p->refs, 1, __ATOMIC_ACQ_REL) == 0) plan_free(p);
}

static uint64_t hash_of(const pd_dnn_key *k) {
    uint64_t a = 0x9e3779b97f4a7c15u, b = 0xc2b2ae3d27d4eb4fu; /* two chains, so that multiplications overlap */
    for (int i = 0; i < PD_DNN_KEY; i += 2) {
        a = (a ^ (uint64_t)k->v[i]) * 0xff51afd7ed558ccdu;
        b = (b ^ (uint64_t)k->v[i + 1]) * 0xc4ceb9fe1a85ec53u;
        a ^= a >> 29;
        b ^= b >> 31;
    }
    return a ^ (b << 1);
}

/* The index of the key, or of the free place for it. */
static size_t find(const pd_dnn_key *key, uint64_t hash) {
    size_t at = hash & (TABLE - 1);
    while (table[at] && !(table[at]->hash == hash && !memcmp(&table[at]->key, key, sizeof *key)))
        at = (at + 1) & (TABLE - 1);
    return at;
}
static void take_out(size_t at) {
    pd_dnn_plan *gone = table[at];
    table[at] = NULL;
    count--;
    for (size_t i = (at + 1) & (TABLE - 1); table[i];
         i = (i + 1) & (TABLE - 1)) { /* entries that were pushed past it move up */
        pd_dnn_plan *p = table[i];
        table[i] = NULL;
        table[find(&p->key, p->hash)] = p;
    }
    pd_dnn_plan_release(gone);
}

pd_dnn_plan *pd_dnn_plan_get(const pd_dnn_key *key, pd_dnn_build build, const void *what, int threads) {
    uint64_t hash = hash_of(key);
    pthread_mutex_lock(&lock);
    pd_dnn_plan *p = table[find(key, hash)];
    if (p) {
        p->used = ++now;
        __atomic_add_fetch(&p->refs, 1, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&lock);
        return p;
    }
    pthread_mutex_unlock(&lock); /* building takes milliseconds; two threads may do it at once, one result is kept */
    if (pd_calloc(sizeof *p, "oneDNN plan", &p) != PD_OK) {
        starved = true;
        return NULL;
    }
    p->key = *key;
    p->hash = hash;
    p->refs = 2;
    int was = threads_push(threads);
    if (build(what, threads, p) != dnnl_success) p->nsteps = 0;
    threads_pop(was, threads);
    for (int i = PD_DNN_USER; i < PD_DNN_BUFFERS; i++) p->scratch += (p->temp[i] + 63) & ~(size_t)63;
    pthread_mutex_lock(&lock);
    size_t at = find(key, hash);
    pd_dnn_plan *mine = p;
    if (table[at]) {
        p = table[at];
        __atomic_add_fetch(&p->refs, 1, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&lock);
        plan_free(mine);
        return p;
    }
    if (count >= PLANS) {
        size_t oldest = TABLE;
        for (size_t i = 0; i < TABLE; i++)
            if (table[i] && (oldest == TABLE || table[i]->used < table[oldest]->used)) oldest = i;
        take_out(oldest);
        at = find(key, hash);
    }
    p->used = ++now;
    table[at] = p;
    count++;
    pthread_mutex_unlock(&lock);
    return p;
}

int64_t pd_onednn_cached(void) {
    pthread_mutex_lock(&lock);
    int64_t n = count;
    pthread_mutex_unlock(&lock);
    return n;
}
void pd_onednn_trim(void) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < TABLE; i++) {
        if (table[i]) pd_dnn_plan_release(table[i]);
        table[i] = NULL;
    }
    count = 0;
    pthread_mutex_unlock(&lock);
}

static pd_dnn_set *take_spare(pd_dnn_plan *p) {
    for (int i = 0; i < PD_DNN_SPARES; i++) {
        pd_dnn_set *s = __atomic_load_n(&p->spare[i], __ATOMIC_RELAXED)
                            ? __atomic_exchange_n(&p->spare[i], NULL, __ATOMIC_ACQ_REL)
                            : NULL;
        if (s) return s;
    }
    return NULL;
}
static void give_spare(pd_dnn_plan *p, pd_dnn_set *s) {
    for (int i = 0; i < PD_DNN_SPARES; i++) {
        pd_dnn_set *none = NULL;
        if (__atomic_compare_exchange_n(&p->spare[i], &none, s, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
    }
    set_free(s);
}

pd_status pd_dnn_plan_run(pd_dnn_plan *p, void *const *user, void *scratch, int threads) {
    void *at[PD_DNN_BUFFERS];
    char *next = scratch;
    for (int i = 0; i < PD_DNN_BUFFERS; i++) {
        at[i] = i < PD_DNN_USER ? user[i] : next;
        if (i >= PD_DNN_USER) next += (p->temp[i] + 63) & ~(size_t)63;
    }
    pd_dnn_set *s = take_spare(p);
    if (!s && !(s = set_new(p))) return PD_TRAIL(PD_E_MEMORY);
    int was = threads_push(threads);
    dnnl_status_t did = dnnl_success;
    for (int i = 0; i < p->nsteps && did == dnnl_success; i++) {
        const pd_dnn_step *step = &p->steps[i];
        for (int a = 0; a < step->nargs; a++) pd_dnn.memory_set_data_handle(s->args[i][a].memory, at[step->buffer[a]]);
        did = pd_dnn.primitive_execute(step->primitive, s->stream, step->nargs, s->args[i]);
    }
    threads_pop(was, threads);
    give_spare(p, s);
    return did == dnnl_success ? PD_OK : pd_fail(PD_E_RUNTIME, "oneDNN: a primitive failed with status %d", (int)did);
}

/* ---- building ---- */

static const_dnnl_memory_desc_t describe(dnnl_primitive_t primitive, int arg) {
    const_dnnl_primitive_desc_t pd = NULL;
    if (pd_dnn.primitive_get_primitive_desc(primitive, &pd) != dnnl_success) return NULL;
    return pd_dnn.primitive_desc_query_md(pd, dnnl_query_exec_arg_md, arg);
}

dnnl_status_t pd_dnn_add(pd_dnn_plan *p, dnnl_primitive_desc_t pd, int nargs, const int *arg, const int *buffer) {
    pd_dnn_step *s = &p->steps[p->nsteps];
    const char *name = NULL;
    dnnl_status_t status = pd_dnn.primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name);
    if (status == dnnl_success && name && !strncmp(name, "ref", 3)) status = dnnl_unimplemented;
    if (status == dnnl_success) status = pd_dnn.primitive_create(&s->primitive, pd);
    pd_dnn.primitive_desc_destroy(pd);
    if (status != dnnl_success) return status;
    p->nsteps++;
    for (int i = 0; i < nargs; i++) {
        s->arg[s->nargs] = arg[i];
        s->buffer[s->nargs] = buffer[i];
        s->md[s->nargs++] = describe(s->primitive, arg[i]);
    }
    const_dnnl_memory_desc_t scratchpad = describe(s->primitive, DNNL_ARG_SCRATCHPAD);
    size_t bytes = scratchpad ? pd_dnn.memory_desc_get_size(scratchpad) : 0;
    if (bytes) {
        s->arg[s->nargs] = DNNL_ARG_SCRATCHPAD;
        s->buffer[s->nargs] = PD_DNN_BUFFERS - 1; /* the steps share one, since they run one after the other */
        s->md[s->nargs++] = scratchpad;
        if (p->temp[PD_DNN_BUFFERS - 1] < bytes) p->temp[PD_DNN_BUFFERS - 1] = bytes;
    }
    return dnnl_success;
}

dnnl_status_t pd_dnn_attr(dnnl_primitive_attr_t *attr, bool add, bool relu) {
    dnnl_status_t status = dnnl_success;
    dnnl_post_ops_t post = NULL;
    *attr = NULL;
    PD_DNN_DO(pd_dnn.primitive_attr_create(attr));
    PD_DNN_DO(pd_dnn.primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user));
    if (add || relu) {
        PD_DNN_DO(pd_dnn.post_ops_create(&post));
        if (add) PD_DNN_DO(pd_dnn.post_ops_append_sum(post, 1.0f, 0, dnnl_data_type_undef));
        if (relu) PD_DNN_DO(pd_dnn.post_ops_append_eltwise(post, dnnl_eltwise_relu, 0.0f, 0.0f));
        PD_DNN_DO(pd_dnn.primitive_attr_set_post_ops(*attr, post));
    }
done:
    if (post) pd_dnn.post_ops_destroy(post);
    if (status != dnnl_success && *attr) {
        pd_dnn.primitive_attr_destroy(*attr);
        *attr = NULL;
    }
    return status;
}

dnnl_status_t pd_dnn_add_reorder(pd_dnn_plan *p, const_dnnl_memory_desc_t a, int from, const_dnnl_memory_desc_t b,
                                 int to) {
    dnnl_status_t status = dnnl_success;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    PD_DNN_DO(pd_dnn_attr(&attr, false, false));
    PD_DNN_DO(pd_dnn.reorder_primitive_desc_create(&pd, a, pd_dnn_engine, b, pd_dnn_engine, attr));
    PD_DNN_DO(pd_dnn_add(p, pd, 2, (int[]){DNNL_ARG_FROM, DNNL_ARG_TO}, (int[]){from, to}));
done:
    if (attr) pd_dnn.primitive_attr_destroy(attr);
    return status;
}
#endif
