/* A fake of NCCL for tests of what pydist does around it: ranks are processes that share a file, "device memory" is the
   emulator's (tests/emulator), whose own copy it uses. It shows that the control paths work, in progress, errors, hangs,
   aborts, and moves real data, so that training can be driven end to end. It is never evidence that NCCL works, or that
   pydist works with NCCL: that is what tests/gpu shows on a GPU.

   FAKE_NCCL: "RANK FAULT NUMBER", a fault of one rank of each communicator. Operations count from 1.
     version N         the version is N (on all ranks, whatever RANK is)
     slow N            each operation, the making included, is in progress for N looks more
     refuse N          operation N is refused as an invalid argument
     hang N            operation N hangs the stream, on all ranks, until an abort
     error N           the same, and RANK's communicator reports a remote error
     stuck N           the same as hang, and RANK's abort takes a minute
   FAKE_NCCL_FOLDER: where communicators' files lie.
   FAKE_NCCL_CALLS=1: each operation is written to stderr. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/dtype.h"
#include "device/cuda_library.h"
#include "device/nccl.h"

#define API __attribute__((visibility("default")))
enum { RANKS = 8, PART = 1 << 20, PARTS = RANKS, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, MADE_OP = 8, MESSAGES_MAX = 64 };

typedef struct board { /* the file: a communicator */
    atomic_int joined[RANKS], posted[RANKS], taken[RANKS];
    char slot[RANKS][PARTS * PART];
} board;

typedef enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, MESSAGES } kind;
typedef struct message { void *data; size_t bytes, at; int peer, sends; } message; /* at: in the part */

typedef struct order { /* an operation */
    kind kind;
    const void *in;
    void *out;
    size_t n;
    int type, op, root, nmessages;
    double factor;
    message messages[MESSAGES_MAX];
    char *stream;
} order;

typedef struct comm {
    board *b;
    int rank, size, number; /* operations so far */
    int looks;              /* in progress for so many more */
    int pending, posted;
    int hung, error, later; /* later: looks that do not show the error yet */
    int captured;           /* graphs hold it */
    _Atomic int ended;
    order now;
    double factor[MADE_OP];
    int made;
} comm;

static struct { int rank, number; char name[16]; } fault;
typedef struct memory { void *p; int registered; } memory;
static memory given[4];
static int grouped;
static comm *of_group;
static char last_words[200];

static int faulty(const comm *c, const char *name) { return fault.rank == c->rank && !strcmp(fault.name, name); }

static void read_fault(void) {
    const char *text = getenv("FAKE_NCCL");
    if (!text || sscanf(text, "%d %15s %d", &fault.rank, fault.name, &fault.number) != 3) strcpy(fault.name, "none");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *of_emulator(const char *name) { return dlsym(dlopen(getenv("PYDIST_CUDA_LIBRARY"), RTLD_NOW), name); }

static const pd_cuda_library *emulator(void) {
    static const pd_cuda_library *library;
    if (!library) library = of_emulator(PD_CUDA_SYMBOL);
    return library;
}

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes) emulator()->copy(to, from, bytes, NULL);
}

static size_t size_of(int type) {
    return type <= PD_NCCL_U8 ? 1 : type == PD_NCCL_F16 || type == PD_NCCL_BF16 ? 2
           : type == PD_NCCL_I32 || type == PD_NCCL_F32 ? 4 : 8;
}

static double get(const char *p, int type, size_t i) {
    switch (type) {
    case PD_NCCL_I8: return ((const int8_t *)p)[i];
    case PD_NCCL_U8: return ((const uint8_t *)p)[i];
    case PD_NCCL_I32: return ((const int32_t *)p)[i];
    case PD_NCCL_I64: return (double)((const int64_t *)p)[i];
    case PD_NCCL_F16: return pd_f16_to_f32(((const pd_f16 *)p)[i]);
    case PD_NCCL_BF16: return pd_bf16_to_f32(((const pd_bf16 *)p)[i]);
    case PD_NCCL_F32: return ((const float *)p)[i];
    default: return ((const double *)p)[i];
    }
}

static void put(char *p, int type, size_t i, double v) {
    switch (type) {
    case PD_NCCL_I8: ((int8_t *)p)[i] = (int8_t)v; break;
    case PD_NCCL_U8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    case PD_NCCL_I32: ((int32_t *)p)[i] = (int32_t)v; break;
    case PD_NCCL_I64: ((int64_t *)p)[i] = (int64_t)v; break;
    case PD_NCCL_F16: ((pd_f16 *)p)[i] = pd_f32_to_f16((float)v); break;
    case PD_NCCL_BF16: ((pd_bf16 *)p)[i] = pd_f32_to_bf16((float)v); break;
    case PD_NCCL_F32: ((float *)p)[i] = (float)v; break;
    default: ((double *)p)[i] = v;
    }
}

static double combine(int op, double a, double b) {
    return op == PD_NCCL_PRODUCT ? a * b : op == PD_NCCL_MAX ? (a > b ? a : b) : op == PD_NCCL_MIN ? (a < b ? a : b) : a + b;
}

/* ---- operations: posted into the own slot, then taken from all ---------------------------------------------------- */

static void post(comm *c) {
    const order *o = &c->now;
    char *slot = c->b->slot[c->rank];
    if (o->kind == MESSAGES) {
        for (int i = 0; i < o->nmessages; i++)
            if (o->messages[i].sends)
                copy(slot + (size_t)o->messages[i].peer * PART + o->messages[i].at, o->messages[i].data, o->messages[i].bytes);
    } else if (o->kind != BROADCAST || c->rank == o->root)
        copy(slot, o->in, o->n * size_of(o->type) * (size_t)(o->kind == REDUCE_SCATTER ? c->size : 1));
    if (o->op >= MADE_OP)
        for (size_t i = 0; i < o->n * (size_t)(o->kind == REDUCE_SCATTER ? c->size : 1); i++)
            put(slot, o->type, i, get(slot, o->type, i) * o->factor);
}

static void take(comm *c) {
    const order *o = &c->now;
    size_t element = size_of(o->type), bytes = o->n * element;
    size_t at = o->kind == REDUCE_SCATTER ? (size_t)c->rank * o->n : 0;
    char *sum;
    switch (o->kind) {
    case MESSAGES:
        for (int i = 0; i < o->nmessages; i++)
            if (!o->messages[i].sends)
                copy(o->messages[i].data, c->b->slot[o->messages[i].peer] + (size_t)c->rank * PART + o->messages[i].at,
                     o->messages[i].bytes);
        return;
    case BROADCAST: copy(o->out, c->b->slot[o->root], bytes); return;
    case ALL_GATHER:
        for (int r = 0; r < c->size; r++) copy((char *)o->out + (size_t)r * bytes, c->b->slot[r], bytes);
        return;
    default:
        if (o->kind == REDUCE && c->rank != o->root) return;
        sum = malloc(bytes + 1);
        for (size_t i = 0; i < o->n; i++) {
            double v = get(c->b->slot[0], o->type, at + i);
            for (int r = 1; r < c->size; r++) v = combine(o->op, v, get(c->b->slot[r], o->type, at + i));
            put(sum, o->type, i, v);
        }
        copy(o->out, sum, bytes);
        free(sum);
    }
}

static int all_at(const comm *c, atomic_int *counts, int number) {
    for (int r = 0; r < c->size; r++)
        if (atomic_load(&counts[r]) < number) return 0;
    return 1;
}

/* Carries the operation on, as NCCL's own thread would: the result that a look at the communicator has. */
static int look(comm *c) {
    if (c->looks > 0) return c->looks--, PD_NCCL_IN_PROGRESS;
    if (c->error) return c->later-- > 0 ? PD_NCCL_OK : c->error;
    if (!c->number && !c->pending) return all_at(c, c->b->joined, 1) ? PD_NCCL_OK : PD_NCCL_IN_PROGRESS;
    if (!c->pending) return PD_NCCL_OK;
    if (!c->posted && all_at(c, c->b->taken, c->number - 1)) {
        post(c);
        c->posted = 1;
        atomic_store(&c->b->posted[c->rank], c->number);
    }
    if (!c->posted || !all_at(c, c->b->posted, c->number)) return PD_NCCL_IN_PROGRESS;
    take(c);
    atomic_store(&c->b->taken[c->rank], c->number);
    c->pending = 0;
    return PD_NCCL_OK;
}

static const char *const names[] = {"all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "messages"};

static int begin(comm *c) {
    c->number++;
    if (getenv("FAKE_NCCL_CALLS")) fprintf(stderr, "FAKE: rank %d: %s\n", c->rank, names[c->now.kind]);
    c->posted = 0;
    if (faulty(c, "slow")) c->looks = fault.number;
    if (c->number == fault.number && faulty(c, "refuse")) {
        snprintf(last_words, sizeof last_words, "fake.cc:1 the fake refuses operation %d", c->number);
        return INVALID_ARGUMENT;
    }
    c->hung = c->number == fault.number && strstr("hang error stuck", fault.name) != NULL;
    c->pending = !c->hung;
    if (c->hung) *c->now.stream = 1;
    if (c->hung && faulty(c, "error")) {
        snprintf(last_words, sizeof last_words, "fake.cc:2 the fake has lost its peer");
        c->error = REMOTE_ERROR;
        c->later = 20; /* it is launched before */
    }
    return c->hung ? PD_NCCL_OK : look(c);
}

/* As a node of a graph, whenever that is launched: like a kernel, until its peers come or an abort. */
typedef struct node { comm *c; order o; } node;
static void replay(void *ctx) {
    node *x = ctx;
    x->c->now = x->o;
    if (!x->c->ended) begin(x->c);
    while (!x->c->ended && look(x->c) == PD_NCCL_IN_PROGRESS) usleep(100);
}

/* c->now goes to its stream. */
static int launch(comm *c) {
    bool captured;
    if (emulator()->capturing(c->now.stream, &captured) || !captured) return begin(c);
    void (*write)(void *stream, void (*call)(void *), void *ctx);
    *(void **)&write = of_emulator("pd_emulate_call");
    node *x = malloc(sizeof *x);
    *x = (node){c, c->now};
    c->captured = 1;
    write(c->now.stream, replay, x);
    return PD_NCCL_OK;
}

static int operation(comm *c, kind k, const void *in, void *out, size_t n, int type, int op, int root, void *stream) {
    double factor = op >= MADE_OP ? c->factor[op - MADE_OP] : 1;
    c->now = (order){.kind = k, .in = in, .out = out, .n = n, .type = type, .op = op, .root = root, .factor = factor,
                     .stream = stream};
    return n * size_of(type) * (size_t)c->size > PARTS * PART ? INVALID_ARGUMENT : launch(c);
}

/* ---- NCCL's names ------------------------------------------------------------------------------------------------- */

API int ncclGetVersion(int *version) {
    read_fault();
    *version = !strcmp(fault.name, "version") ? fault.number : 22809;
    return 0;
}
API int ncclGetUniqueId(pd_nccl_id *id) {
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "%s/comm.XXXXXX", getenv("FAKE_NCCL_FOLDER"));
    int fd = mkstemp(id->bytes);
    if (fd < 0 || ftruncate(fd, sizeof(board))) return 2;
    close(fd);
    return 0;
}
API const char *ncclGetErrorString(int result) {
    return result == REMOTE_ERROR ? "remote process exited or there was a network error" : "invalid argument";
}
API const char *ncclGetLastError(void *comm) { return (void)comm, last_words; }

API int ncclCommInitRankConfig(void **out, int size, pd_nccl_id id, int rank, pd_nccl_config *config) {
    comm *c = calloc(1, sizeof *c);
    int fd = open(id.bytes, O_RDWR);
    if (fd < 0 || size > RANKS || config->blocking || config->magic != 0xcafebeef) return INVALID_ARGUMENT;
    c->b = mmap(NULL, sizeof *c->b, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    c->rank = rank;
    c->size = size;
    if (faulty(c, "slow")) c->looks = fault.number;
    atomic_store(&c->b->joined[rank], 1);
    *out = c;
    return PD_NCCL_IN_PROGRESS;
}
API int ncclCommGetAsyncError(void *comm, int *result) { return *result = look(comm), 0; }

static void end(comm *c) {
    if (c->hung) *(volatile char *)c->now.stream = 0;
    c->ended = 1;
    if (c->captured) return;
    munmap(c->b, sizeof *c->b);
    free(c);
}
API int ncclCommFinalize(void *comm) { return (void)comm, 0; }
API int ncclCommDestroy(void *comm) { return end(comm), 0; }
API int ncclCommAbort(void *comm) {
    if (faulty(comm, "stuck")) sleep(60);
    for (int i = 0; i < 4; i++) given[i].registered = 0;
    return end(comm), 0;
}

/* Memory is the emulator's. To give back what a communicator that lives still has registered ends the test. */
static memory *find_memory(const void *p) {
    for (int i = 0; i < 4; i++)
        if (given[i].p == p) return &given[i];
    return NULL;
}
API int ncclMemAlloc(void **out, size_t bytes) {
    memory *m = find_memory(NULL);
    if (!m || emulator()->take(out, bytes)) return INVALID_ARGUMENT;
    m->p = *out;
    return 0;
}
API int ncclMemFree(void *p) {
    memory *m = find_memory(p);
    if (m->registered) abort();
    fprintf(stderr, "FAKE: freed\n");
    m->p = NULL;
    return emulator()->give(p);
}
API int ncclCommRegister(void *comm, void *p, size_t bytes, void **handle) {
    memory *m = find_memory(p);
    if (!m || !bytes) return INVALID_ARGUMENT;
    fprintf(stderr, "FAKE: registered with %d\n", ((struct comm *)comm)->size);
    m->registered = 1;
    *handle = m;
    return 0;
}
API int ncclCommDeregister(void *comm, void *handle) {
    ((memory *)handle)->registered = 0;
    return comm ? 0 : INVALID_ARGUMENT;
}

API int ncclGroupStart(void) {
    grouped = 1;
    of_group = NULL;
    return 0;
}
API int ncclGroupEnd(void) {
    grouped = 0;
    return of_group ? launch(of_group) : 0;
}
static int add_message(comm *c, message m, void *stream) {
    order *o = &c->now;
    if (!of_group) *o = (order){.kind = MESSAGES, .stream = stream};
    for (int i = 0; i < o->nmessages; i++)
        if (o->messages[i].peer == m.peer && o->messages[i].sends == m.sends) m.at += o->messages[i].bytes;
    if (!grouped || o->nmessages == MESSAGES_MAX || m.at + m.bytes > PART) return INVALID_ARGUMENT;
    of_group = c;
    o->messages[o->nmessages++] = m;
    return 0;
}
API int ncclSend(const void *in, size_t n, int type, int peer, void *comm, void *stream) {
    return add_message(comm, (message){(void *)(uintptr_t)in, n * size_of(type), 0, peer, 1}, stream);
}
API int ncclRecv(void *out, size_t n, int type, int peer, void *comm, void *stream) {
    return add_message(comm, (message){out, n * size_of(type), 0, peer, 0}, stream);
}

API int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, void *comm) {
    struct comm *c = comm;
    if (residence != PD_NCCL_HOST_SCALAR) return INVALID_ARGUMENT;
    c->factor[c->made % MADE_OP] = get(scalar, type, 0);
    *op = MADE_OP + c->made++ % MADE_OP;
    return 0;
}
API int ncclRedOpDestroy(int op, void *comm) { return (void)comm, op < MADE_OP ? INVALID_ARGUMENT : 0; }

API int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *comm, void *stream) {
    return operation(comm, ALL_REDUCE, in, out, n, type, op, 0, stream);
}
API int ncclReduce(const void *in, void *out, size_t n, int type, int op, int root, void *comm, void *stream) {
    return operation(comm, REDUCE, in, out, n, type, op, root, stream);
}
API int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op, void *comm, void *stream) {
    return operation(comm, REDUCE_SCATTER, in, out, n, type, op, 0, stream);
}
API int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, void *comm, void *stream) {
    return operation(comm, BROADCAST, in, out, n, type, 0, root, stream);
}
API int ncclAllGather(const void *in, void *out, size_t n, int type, void *comm, void *stream) {
    return operation(comm, ALL_GATHER, in, out, n, type, 0, 0, stream);
}
