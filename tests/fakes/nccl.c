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
   FAKE_NCCL_FOLDER: where communicators' files lie. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/dtype.h"
#include "device/cuda_library.h"
#include "device/nccl.h"

#define API __attribute__((visibility("default")))
enum { RANKS = 4, PART = 1 << 20, PARTS = 4, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, MADE_OP = 8, MESSAGES_MAX = 16 };

typedef struct board { /* the file: a communicator */
    atomic_int joined[RANKS], posted[RANKS], taken[RANKS];
    char slot[RANKS][PARTS * PART];
} board;

typedef enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, MESSAGES } kind;
typedef struct message { void *data; size_t bytes, at; int peer, sends; } message; /* at: in the part */

typedef struct comm {
    board *b;
    int rank, size, number; /* operations so far */
    int looks;              /* in progress for so many more */
    int pending, posted;
    int hung, error, later; /* later: looks that do not show the error yet */
    kind kind;
    const void *in;
    void *out;
    size_t n;
    int type, op, root, nmessages;
    message messages[MESSAGES_MAX];
    char *stream;
    double factor[MADE_OP];
    int made;
} comm;

static struct { int rank, number; char name[16]; } fault;
static int grouped;
static comm *of_group;
static char last_words[200];

static int faulty(const comm *c, const char *name) { return fault.rank == c->rank && !strcmp(fault.name, name); }

static void read_fault(void) {
    const char *text = getenv("FAKE_NCCL");
    if (!text || sscanf(text, "%d %15s %d", &fault.rank, fault.name, &fault.number) != 3) strcpy(fault.name, "none");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void copy(void *to, const void *from, size_t bytes) {
    static const pd_cuda_library *emulator;
    if (!emulator) emulator = dlsym(dlopen(getenv("PYDIST_CUDA_LIBRARY"), RTLD_NOW), PD_CUDA_SYMBOL);
    if (bytes) emulator->copy(to, from, bytes, NULL);
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
    char *slot = c->b->slot[c->rank];
    if (c->kind == MESSAGES) {
        for (int i = 0; i < c->nmessages; i++)
            if (c->messages[i].sends)
                copy(slot + (size_t)c->messages[i].peer * PART + c->messages[i].at, c->messages[i].data, c->messages[i].bytes);
    } else if (c->kind != BROADCAST || c->rank == c->root)
        copy(slot, c->in, c->n * size_of(c->type) * (size_t)(c->kind == REDUCE_SCATTER ? c->size : 1));
    if (c->op >= MADE_OP)
        for (size_t i = 0; i < c->n * (size_t)(c->kind == REDUCE_SCATTER ? c->size : 1); i++)
            put(slot, c->type, i, get(slot, c->type, i) * c->factor[c->op - MADE_OP]);
}

static void take(comm *c) {
    size_t element = size_of(c->type), bytes = c->n * element;
    size_t at = c->kind == REDUCE_SCATTER ? (size_t)c->rank * c->n : 0;
    char *sum;
    switch (c->kind) {
    case MESSAGES:
        for (int i = 0; i < c->nmessages; i++)
            if (!c->messages[i].sends)
                copy(c->messages[i].data, c->b->slot[c->messages[i].peer] + (size_t)c->rank * PART + c->messages[i].at,
                     c->messages[i].bytes);
        return;
    case BROADCAST: copy(c->out, c->b->slot[c->root], bytes); return;
    case ALL_GATHER:
        for (int r = 0; r < c->size; r++) copy((char *)c->out + (size_t)r * bytes, c->b->slot[r], bytes);
        return;
    default:
        if (c->kind == REDUCE && c->rank != c->root) return;
        sum = malloc(bytes + 1);
        for (size_t i = 0; i < c->n; i++) {
            double v = get(c->b->slot[0], c->type, at + i);
            for (int r = 1; r < c->size; r++) v = combine(c->op, v, get(c->b->slot[r], c->type, at + i));
            put(sum, c->type, i, v);
        }
        copy(c->out, sum, bytes);
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

static int begin(comm *c, kind k) {
    c->kind = k;
    c->number++;
    c->posted = 0;
    if (faulty(c, "slow")) c->looks = fault.number;
    if (c->number == fault.number && faulty(c, "refuse")) {
        snprintf(last_words, sizeof last_words, "fake.cc:1 the fake refuses operation %d", c->number);
        return INVALID_ARGUMENT;
    }
    c->hung = c->number == fault.number && strstr("hang error stuck", fault.name) != NULL;
    c->pending = !c->hung;
    if (c->hung) *c->stream = 1;
    if (c->hung && faulty(c, "error")) {
        snprintf(last_words, sizeof last_words, "fake.cc:2 the fake has lost its peer");
        c->error = REMOTE_ERROR;
        c->later = 20; /* it is launched before */
    }
    return c->hung ? PD_NCCL_OK : look(c);
}

static int operation(comm *c, kind k, const void *in, void *out, size_t n, int type, int op, int root, void *stream) {
    c->in = in;
    c->out = out;
    c->n = n;
    c->type = type;
    c->op = op;
    c->root = root;
    c->stream = stream;
    return n * size_of(type) * (size_t)c->size > PARTS * PART ? INVALID_ARGUMENT : begin(c, k);
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
    if (c->hung) *(volatile char *)c->stream = 0;
    munmap(c->b, sizeof *c->b);
    free(c);
}
API int ncclCommFinalize(void *comm) { return (void)comm, 0; }
API int ncclCommDestroy(void *comm) { return end(comm), 0; }
API int ncclCommAbort(void *comm) {
    if (faulty(comm, "stuck")) sleep(60);
    return end(comm), 0;
}

API int ncclGroupStart(void) {
    grouped = 1;
    of_group = NULL;
    return 0;
}
API int ncclGroupEnd(void) {
    grouped = 0;
    return of_group ? begin(of_group, MESSAGES) : 0;
}
static int add_message(comm *c, message m, void *stream) {
    if (!of_group) c->nmessages = 0;
    for (int i = 0; i < c->nmessages; i++)
        if (c->messages[i].peer == m.peer && c->messages[i].sends == m.sends) m.at += c->messages[i].bytes;
    if (!grouped || c->nmessages == MESSAGES_MAX || m.at + m.bytes > PART) return INVALID_ARGUMENT;
    of_group = c;
    c->stream = stream;
    c->op = 0;
    c->messages[c->nmessages++] = m;
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
