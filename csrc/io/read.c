#include "io/read.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/mem.h"
#include "io/crc32.h"
#include "io/crew.h"
#include "io/file.h"

/* PIECE: bytes that are still in the cache when their checksum is made. */
enum { PIECE = 256 << 10 };

/* A box as rows of elements that follow each other in the file. Strides of both sides count bytes. */
typedef struct rows {
    int ndim;
    int64_t count, first; /* of rows; where the first one begins in the tensor */
    int64_t length, step; /* elements of a row, and their distance in memory */
    int64_t size[PD_BOX_DIMS], from[PD_BOX_DIMS], to[PD_BOX_DIMS];
} rows;

typedef struct unit { int64_t box, block, row; } unit; /* row: the first one that touches the block */

typedef struct reader {
    pd_crew crew; /* first: a reader is a crew */
    const char *op, *path;
    const pd_box *box;
    rows *rows; /* of each box */
    unit *unit; /* all blocks that are read, in order */
    size_t units, room;
    pd_open_file file;
    atomic_bool direct;
    atomic_int_fast64_t next;
    pthread_mutex_t lock;
    size_t bad; /* the first damaged unit so far */
    pd_damage damage;
} reader;

/* ---- what is where ----------------------------------------------------------------------------------------------- */

pd_status pd_box_check(const char *op, const pd_box *box, int64_t i) {
    int64_t bytes = box->each, end;
    bool empty = false;
    if (box->each < 1 || box->each > 16 || (box->each & (box->each - 1)) || box->ndim < 0 || box->ndim > PD_BOX_DIMS)
        return pd_fail(PD_E_VALUE,
                       "%s: job %lld has %d dimensions and elements of %lld bytes (expected at most %d, and 1, 2, 4, 8 "
                       "or 16)",
                       op, (long long)i, box->ndim, (long long)box->each, PD_BOX_DIMS);
    for (int d = 0; d < box->ndim; d++) {
        int64_t lo = box->lo[d], size = box->size[d], shape = box->shape[d];
        if (shape < 0 || lo < 0 || size < 0 || lo > shape || size > shape - lo)
            return pd_fail(PD_E_VALUE,
                           "%s: job %lld reads %lld elements from %lld on of a dimension of %lld (expected a box "
                           "within the shape)",
                           op, (long long)i, (long long)size, (long long)lo, (long long)shape);
        empty |= shape == 0;
        if (box->stride[d] < 0)
            return pd_fail(PD_E_VALUE, "%s: job %lld has stride %lld (expected 0 or more)", op, (long long)i,
                           (long long)box->stride[d]);
    }
    for (int d = 0; d < box->ndim && !empty; d++)
        if (__builtin_mul_overflow(bytes, box->shape[d], &bytes))
            return pd_fail(PD_E_VALUE, "%s: job %lld has a shape of too many elements (expected less than 2^63 bytes)",
                           op, (long long)i);
    if (empty) bytes = 0;
    if (box->bytes != bytes)
        return pd_fail(PD_E_VALUE, "%s: job %lld has %lld bytes, but its shape %lld (expected the same)", op,
                       (long long)i, (long long)box->bytes, (long long)bytes);
    if (box->begin < 0 || __builtin_add_overflow(box->begin, bytes, &end) || end > INT64_MAX - 2 * PD_BLOCK)
        return pd_fail(PD_E_VALUE, "%s: job %lld begins at byte %lld (expected 0 or more, and an end below 2^63)", op,
                       (long long)i, (long long)box->begin);
    return PD_OK;
}

/* Joins dimensions that follow each other without a gap on both sides. */
static rows rows_of(const pd_box *box) {
    rows r = {.count = 1, .length = 1, .step = box->each};
    int64_t size[PD_BOX_DIMS], from[PD_BOX_DIMS], to[PD_BOX_DIMS], each = box->each;
    int n = 0; /* dimensions so far, the innermost first */
    for (int d = 0; d < box->ndim; d++)
        if (!box->size[d]) return (rows){.count = 0};
    for (int d = box->ndim - 1; d >= 0; each *= box->shape[d--]) {
        r.first += box->lo[d] * each;
        if (box->size[d] == 1) continue;
        int64_t step = box->stride[d] * box->each;
        if (n && each == size[n - 1] * from[n - 1] && step == size[n - 1] * to[n - 1]) {
            size[n - 1] *= box->size[d];
            continue;
        }
        size[n] = box->size[d], from[n] = each, to[n++] = step;
    }
    int inner = n && from[0] == box->each;
    if (inner) r.length = size[0], r.step = to[0];
    for (int k = n - 1; k >= inner; k--) {
        r.size[r.ndim] = size[k], r.from[r.ndim] = from[k], r.to[r.ndim++] = to[k];
        r.count *= size[k];
    }
    return r;
}

/* Where row k begins in the tensor, and in memory. */
static void place(const rows *r, int64_t k, int64_t *from, int64_t *to) {
    *from = r->first;
    *to = 0;
    for (int d = r->ndim - 1; d >= 0; k /= r->size[d--]) {
        *from += k % r->size[d] * r->from[d];
        *to += k % r->size[d] * r->to[d];
    }
}

/* The first row that ends after this byte of the tensor; rows->count: none. */
static int64_t row_after(const rows *r, int64_t each, int64_t byte) {
    int64_t low = 0, high = r->count, from, to;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        place(r, middle, &from, &to);
        if (from + r->length * each > byte) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* Where the last row that begins before this byte ends; at most `byte`. There is one. */
static int64_t end_of_rows(const rows *r, int64_t each, int64_t byte) {
    int64_t k = row_after(r, each, byte - 1), from = byte, to;
    if (k < r->count) place(r, k, &from, &to);
    if (from < byte) return byte;
    place(r, k - 1, &from, &to);
    return from + r->length * each;
}

static pd_status list_blocks(reader *r, int64_t i) {
    const rows *rows = &r->rows[i];
    int64_t each = r->box[i].each, from, to, row = 0, block = 0;
    while (row < rows->count) {
        place(rows, row, &from, &to);
        if (block < from / PD_BLOCK) block = from / PD_BLOCK;
        PD_TRY(pd_grow(&r->unit, &r->room, r->units + 1, sizeof *r->unit, r->op));
        r->unit[r->units++] = (unit){i, block++, row};
        row = row_after(rows, each, block * PD_BLOCK);
    }
    return PD_OK;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void copy_elements(char *to, int64_t step, const char *from, int64_t n, int64_t each) {
    if (step == each) {
        memcpy(to, from, (size_t)(n * each));
        return;
    }
#define EACH(bytes) \
    case bytes:     \
        for (int64_t i = 0; i < n; i++) memcpy(to + i * step, from + i * bytes, bytes); \
        break
    switch (each) {
        EACH(1);
        EACH(2);
        EACH(4);
        EACH(8);
        EACH(16);
    }
#undef EACH
}

/* Copies what the box has of the tensor's bytes [begin, end), which lie at `data`. */
static void copy_rows(const pd_box *box, const rows *r, int64_t row, int64_t begin, int64_t end, const char *data) {
    int64_t index[PD_BOX_DIMS], from, to, k = row;
    place(r, row, &from, &to);
    for (int d = r->ndim - 1; d >= 0; k /= r->size[d--]) index[d] = k % r->size[d];
    for (; row < r->count && from < end; row++) {
        int64_t first = from < begin ? begin : from, last = from + r->length * box->each;
        if (last > end) last = end;
        int64_t skipped = (first - from) / box->each;
        if (last > first)
            copy_elements(box->to + to + skipped * r->step, r->step, data + (first - begin), (last - first) / box->each,
                          box->each);
        for (int d = r->ndim - 1; d >= 0; d--) {
            from += r->from[d], to += r->to[d];
            if (++index[d] < r->size[d]) break;
            from -= r->size[d] * r->from[d], to -= r->size[d] * r->to[d];
            index[d] = 0;
        }
    }
}

static pd_status damaged(reader *r, size_t i, bool cut, uint32_t expected, uint32_t got) {
    pthread_mutex_lock(&r->lock);
    if (!r->damage.found || i < r->bad) {
        r->bad = i;
        r->damage = (pd_damage){.found = true, .cut = cut, .checked = r->box[r->unit[i].box].crc != NULL,
                                .box = r->unit[i].box, .block = r->unit[i].block, .expected = expected, .got = got};
    }
    pthread_mutex_unlock(&r->lock);
    return PD_OK; /* earlier blocks, which other threads have taken, may be damaged, too */
}

/* Reads bytes of the file in pieces; *crc: theirs, if `check`. *got < bytes: the file ends there. */
static pd_status read_cached(reader *r, char *to, int64_t bytes, int64_t at, bool check, int64_t *got, uint32_t *crc) {
    for (*got = 0; *got < bytes;) {
        size_t n, want = (size_t)(bytes - *got < PIECE ? bytes - *got : PIECE);
        PD_TRY(pd_file_status(r->op, r->path, pd_file_calls->pread(&r->file, to + *got, want, at + *got, &n)));
        if (check) *crc = pd_crc32(*crc, to + *got, n);
        *got += (int64_t)n;
        if (n < want) return PD_OK;
    }
    return PD_OK;
}

/* The same past the page cache, through whole disk blocks around the bytes. *data: where the bytes are in the
   buffer. */
static pd_status read_direct(reader *r, char *buffer, int64_t bytes, int64_t at, bool check, int64_t *got,
                             uint32_t *crc, char **data) {
    int64_t begin = at / PD_DIRECT_ALIGN * PD_DIRECT_ALIGN;
    int64_t whole = (at + bytes - begin + PD_DIRECT_ALIGN - 1) / PD_DIRECT_ALIGN * PD_DIRECT_ALIGN;
    size_t n;
    int number = pd_file_calls->pread(&r->file, buffer, (size_t)whole, begin, &n);
    *data = buffer + (at - begin);
    if (number == EINVAL || (!number && (int64_t)n < at + bytes - begin)) {
        pd_file_set_cached(&r->file); /* not such reads; or a short one, which ends at an odd offset */
        r->direct = false;
        return read_cached(r, *data, bytes, at, check, got, crc);
    }
    PD_TRY(pd_file_status(r->op, r->path, number));
    *got = bytes;
    if (check) *crc = pd_crc32(0, *data, (size_t)bytes);
    return PD_OK;
}

static pd_status read_block(reader *r, size_t i, char *buffer) {
    const unit *u = &r->unit[i];
    const pd_box *box = &r->box[u->box];
    const rows *rows = &r->rows[u->box];
    int64_t begin = u->block * PD_BLOCK, end = box->bytes - begin < PD_BLOCK ? box->bytes : begin + PD_BLOCK;
    int64_t from, to, got = 0;
    uint32_t crc = 0;
    place(rows, u->row, &from, &to);
    int64_t last = from + rows->length * box->each;
    if (!box->crc) { /* only what the box has of it */
        end = end_of_rows(rows, box->each, end);
        if (begin < from) begin = from;
    }
    char *data = buffer;
    bool straight = from <= begin && last >= end && rows->step == box->each;
    if (r->direct) {
        straight = false;
        PD_TRY(read_direct(r, buffer, end - begin, box->begin + begin, box->crc, &got, &crc, &data));
    } else {
        if (straight) data = box->to + to + (begin - from);
        PD_TRY(read_cached(r, data, end - begin, box->begin + begin, box->crc, &got, &crc));
    }
    uint32_t expected = box->crc ? box->crc[u->block] : 0;
    if (got < end - begin) return damaged(r, i, true, expected, 0);
    if (box->crc && crc != expected) return damaged(r, i, false, expected, crc);
    if (!straight) copy_rows(box, rows, u->row, begin, end, data);
    return PD_OK;
}

static pd_status read_blocks(pd_crew *crew) {
    reader *r = (reader *)crew;
    char *memory;
    int64_t i;
    PD_TRY(pd_malloc((size_t)PD_BLOCK + 3 * PD_DIRECT_ALIGN, r->op, &memory));
    char *buffer = memory + (-(uintptr_t)memory & (PD_DIRECT_ALIGN - 1));
    pd_status status = PD_OK;
    while (!status && !crew->stop && (i = atomic_fetch_add(&r->next, 1)) < (int64_t)r->units) {
        pthread_mutex_lock(&r->lock);
        bool enough = r->damage.found; /* all blocks before that one have been taken */
        pthread_mutex_unlock(&r->lock);
        if (enough && (size_t)i > r->bad) break;
        status = read_block(r, (size_t)i, buffer);
    }
    pd_free(memory);
    return PD_TRAIL(status);
}

static pd_status plan(reader *r, int64_t count) {
    PD_TRY(pd_malloc((size_t)count * sizeof *r->rows, r->op, &r->rows));
    for (int64_t i = 0; i < count; i++) {
        r->rows[i] = rows_of(&r->box[i]);
        PD_TRY(list_blocks(r, i));
    }
    return PD_OK;
}

static pd_status read_all(reader *r, int threads, bool direct) {
    PD_TRY(pd_file_status(r->op, r->path, pd_file_calls->open(r->path, O_RDONLY, 0, &r->file)));
    r->direct = direct && pd_file_set_direct(&r->file);
    if ((size_t)threads > r->units) threads = r->units ? (int)r->units : 1;
    pd_status status = pd_crew_run(r->op, &r->crew, threads, read_blocks);
    pd_file_calls->close(&r->file);
    return PD_TRAIL(status);
}

pd_status pd_read_boxes(const char *op, const char *path, const pd_box *box, int64_t count, int threads, bool direct,
                        pd_damage *damage) {
    reader r = {.op = op, .path = path, .box = box, .lock = PTHREAD_MUTEX_INITIALIZER};
    pd_status status = plan(&r, count);
    PD_THEN(read_all(&r, threads, direct));
    pd_free(r.rows);
    pd_free(r.unit);
    pthread_mutex_destroy(&r.lock);
    *damage = r.damage;
    if (status || !r.damage.found) return PD_TRAIL(status);
    if (r.damage.cut)
        return pd_fail(PD_E_DATA, "%s: %s: the file ends before block %lld of job %lld does", op, path,
                       (long long)r.damage.block, (long long)r.damage.box);
    return pd_fail(PD_E_DATA, "%s: %s: block %lld of job %lld is damaged: its checksum is 0x%08x (expected 0x%08x)", op,
                   path, (long long)r.damage.block, (long long)r.damage.box, r.damage.got, r.damage.expected);
}
