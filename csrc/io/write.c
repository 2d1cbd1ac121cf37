#include "io/write.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/mem.h"
#include "io/crew.h"
#include "io/file.h"

/* SPAN: bytes of the file that a thread takes at a time. PIECE: bytes that are still in the cache when they are read
   again. GATHERED: parts below a half of this are put together for one call. */
enum { SPAN = 8 << 20, PIECE = 64 << 10, GATHERED = 512 << 10 };

typedef struct writer {
    pd_crew crew; /* first: a writer is a crew */
    const char *op, *path;
    const pd_parts *parts;
    pd_open_file file;
    int64_t offset, span;
    atomic_int_fast64_t next; /* the span that nobody has taken */
    atomic_bool direct;
} writer;

static int64_t rounded_up(int64_t bytes) { return (bytes + PD_DIRECT_ALIGN - 1) / PD_DIRECT_ALIGN * PD_DIRECT_ALIGN; }

static pd_status write_at(writer *w, const void *data, int64_t bytes, int64_t at) {
    return pd_file_status(w->op, w->path, pd_file_calls->pwrite(&w->file, data, (size_t)bytes, w->offset + at));
}

/* Through the buffer, whose end is filled with zeros up to what the disk takes. */
static pd_status write_direct(writer *w, int64_t begin, int64_t end, char *buffer) {
    pd_walk walk = pd_walk_begin(w->parts, begin, end);
    const void *data;
    char *to = buffer;
    for (int64_t n; (n = pd_walk_next(&walk, PIECE, &data)); to += n) {
        memcpy(to, data, (size_t)n);
        pd_walk_past(&walk, to, n);
    }
    int64_t whole = rounded_up(end - begin);
    memset(to, 0, (size_t)(whole - (end - begin)));
    int number = pd_file_calls->pwrite(&w->file, buffer, (size_t)whole, w->offset + begin);
    if (number != EINVAL) return pd_file_status(w->op, w->path, number);
    pd_file_set_cached(&w->file); /* the file system takes the flag, but not such writes */
    w->direct = false;
    return write_at(w, buffer, end - begin, begin);
}

/* From where the parts lie; small ones through the buffer. */
static pd_status write_cached(writer *w, int64_t begin, int64_t end, char *buffer) {
    pd_walk walk = pd_walk_begin(w->parts, begin, end);
    const void *data;
    int64_t held = 0;
    for (int64_t n; (n = pd_walk_next(&walk, GATHERED, &data));) {
        bool small = n < GATHERED / 2;
        if (held && (!small || held + n > GATHERED)) {
            PD_TRY(write_at(w, buffer, held, walk.at - held));
            held = 0;
        }
        if (small) {
            memcpy(buffer + held, data, (size_t)n);
            data = buffer + held;
            held += n;
        }
        pd_walk_past(&walk, data, n);
        if (!small) PD_TRY(write_at(w, data, n, walk.at - n));
    }
    return held ? write_at(w, buffer, held, walk.at - held) : PD_OK;
}

static pd_status write_spans(pd_crew *crew) {
    writer *w = (writer *)crew;
    int64_t bytes = w->parts->bytes, spans = bytes / w->span + (bytes % w->span != 0), i;
    bool bounce = w->direct; /* where it is no longer true, the buffer is larger than necessary */
    char *memory;
    PD_TRY(pd_malloc((size_t)(bounce ? w->span : GATHERED) + PD_DIRECT_ALIGN, w->op, &memory));
    char *buffer = memory + (-(uintptr_t)memory & (PD_DIRECT_ALIGN - 1));
    pd_status status = PD_OK;
    while (!status && !crew->stop && (i = atomic_fetch_add(&w->next, 1)) < spans) {
        int64_t begin = i * w->span, end = bytes - begin < w->span ? bytes : begin + w->span;
        status = bounce && w->direct ? write_direct(w, begin, end, buffer) : write_cached(w, begin, end, buffer);
    }
    pd_free(memory);
    return PD_TRAIL(status);
}

/* The size is set before the writes, so that direct ones need not extend the file one after the other, and again
   where the last one went past it. */
static pd_status fill(writer *w, int threads) {
    const pd_file_ops *calls = pd_file_calls;
    int64_t bytes = w->parts->bytes, spans = bytes / w->span + (bytes % w->span != 0);
    bool direct = w->direct;
    if (threads > spans) threads = spans ? (int)spans : 1;
    PD_TRY(pd_file_status(w->op, w->path, calls->ftruncate(&w->file, w->offset + bytes)));
    PD_TRY(pd_crew_run(w->op, &w->crew, threads, write_spans));
    if (direct && bytes % PD_DIRECT_ALIGN)
        PD_TRY(pd_file_status(w->op, w->path, calls->ftruncate(&w->file, w->offset + bytes)));
    return PD_OK;
}

static pd_status closed(const char *op, const char *path, pd_open_file *file, pd_status status) {
    int number = pd_file_calls->close(file); /* of two errors, the first one is told */
    return status ? PD_TRAIL(status) : pd_file_status(op, path, number);
}

pd_status pd_write_parts(const char *op, const char *path, const pd_parts *parts, int64_t offset, int threads,
                         bool direct) {
    writer w = {.op = op, .path = path, .parts = parts, .offset = offset, .span = SPAN};
    if (w.span > PD_WRITE_MEMORY / threads) w.span = PD_WRITE_MEMORY / threads / PD_DIRECT_ALIGN * PD_DIRECT_ALIGN;
    PD_TRY(pd_file_status(op, path, pd_file_calls->open(path, O_WRONLY | O_CREAT | O_EXCL, 0666, &w.file)));
    w.direct = direct && parts->bytes && pd_file_set_direct(&w.file);
    return closed(op, path, &w.file, fill(&w, threads));
}

pd_status pd_write_small(const char *op, const char *path, bool make, const void *data, size_t bytes, bool sync) {
    const pd_file_ops *calls = pd_file_calls;
    pd_open_file file;
    PD_TRY(pd_file_status(op, path, calls->open(path, make ? O_WRONLY | O_CREAT | O_EXCL : O_WRONLY, 0666, &file)));
    pd_status status = pd_file_status(op, path, calls->pwrite(&file, data, bytes, 0));
    if (sync) PD_THEN(pd_file_status(op, path, calls->fdatasync(&file)));
    return closed(op, path, &file, status);
}

pd_status pd_write_sync(const char *op, const char *path) {
    pd_open_file file;
    PD_TRY(pd_file_status(op, path, pd_file_calls->open(path, O_RDONLY, 0, &file)));
    return closed(op, path, &file, pd_file_status(op, path, pd_file_calls->fsync(&file)));
}
