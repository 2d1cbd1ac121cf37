#include "io/stage.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os.h"
#include "io/crew.h"
#include "io/file.h"

/* SPAN: bytes of the arena that a thread takes at a time. PIECE: bytes whose checksum is made just before their
   copy. */
enum { SPAN = 1 << 20, PIECE = 64 << 10, SLICE_NS = 50000000 };

typedef struct pd_stage_impl {
    const char *op;
    pd_os_thread thread[PD_CREW_MOST];
    int threads;
    atomic_int_fast64_t next; /* the span that nobody has taken */
    atomic_bool stop;
    /* ---- under the lock ---- */
    int running;
    uint32_t forks;
    bool cancelled, joined;
    pd_status status;
    pd_error error; /* the first one */
} impl;

atomic_int pd_stages_open; /* written under the lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended; /* some staging has ended */
static uint32_t forks;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }
static void in_child(void) {
    forks++;
    pd_stages_open = 0;
    pd_os_cond_init(&ended); /* threads of the parent may have waited there */
    pthread_mutex_unlock(&lock);
}

static void prepare(void) {
    pd_os_cond_init(&ended);
    pthread_atfork(before_fork, in_parent, in_child);
}

/* ---- the copy ---------------------------------------------------------------------------------------------------- */

/* Gets the pages all at once: where memory has run out this fails, while a write to them would be a SIGBUS. */
static pd_status populate(const char *op, char *at, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
    int rc;
    do rc = madvise(at, (size_t)bytes, MADV_POPULATE_WRITE);
    while (rc && (errno == EINTR || errno == EAGAIN));
    if (rc && errno != EINVAL) /* EINVAL: Linux before 5.14 */
        return pd_fail(PD_E_MEMORY, "%s: cannot get %lld bytes for the arena", op, (long long)bytes);
#endif
    return PD_OK;
}

static pd_status copy_spans(pd_stage *s) {
    impl *m = s->impl;
    int64_t bytes = s->parts.bytes, spans = bytes / SPAN + (bytes % SPAN != 0), i;
    while (!m->stop && (i = atomic_fetch_add(&m->next, 1)) < spans) {
        int64_t begin = i * SPAN, end = bytes - begin < SPAN ? bytes : begin + SPAN;
        pd_walk walk = pd_walk_begin(&s->parts, begin, end);
        const void *data;
        PD_TRY(populate(m->op, s->arena + begin, end - begin));
        for (int64_t n; (n = pd_walk_next(&walk, PIECE, &data));) {
            char *to = s->arena + walk.at;
            pd_walk_past(&walk, data, n);
            memcpy(to, data, (size_t)n);
        }
    }
    return PD_OK;
}

static pd_status check_unwritten(const char *op, const pd_parts *parts) {
    for (int64_t i = 0; i < parts->count; i++) {
        const pd_part *p = &parts->part[i];
        if (p->writes && *p->writes != p->seen)
            return pd_fail(PD_E_RUNTIME, "%s: part %lld was written before it was copied", op, (long long)i);
    }
    return PD_OK;
}

static void *copier(void *arg) {
    pd_stage *s = arg;
    impl *m = s->impl;
    pd_status status = copy_spans(s);
    if (status) m->stop = true;
    pthread_mutex_lock(&lock);
    if (status && !m->status) {
        m->status = status;
        pd_error_save(&m->error);
    }
    if (!--m->running) {
        if (!m->status && (m->status = check_unwritten(m->op, &s->parts))) pd_error_save(&m->error);
        atomic_fetch_sub_explicit(&pd_stages_open, 1, memory_order_release);
        pthread_cond_broadcast(&ended);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- begin and end ----------------------------------------------------------------------------------------------- */

static pd_status map_arena(const char *op, pd_stage *s, int fd, int64_t offset) {
    size_t bytes = (size_t)s->parts.bytes;
    if (!bytes) return PD_OK;
    void *p = pd_fault_hit() ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (p == MAP_FAILED) return pd_fail(PD_E_MEMORY, "%s: cannot map an arena of %zu bytes", op, bytes);
    s->arena = p;
    return PD_OK;
}

/* False if `from` has no such arena. */
static bool take_arena(pd_stage *s, pd_stage *from) {
    if (!from || from->fd < 0 || from->parts.bytes != s->parts.bytes || !pd_stage_ended(from, 0)) return false;
    s->fd = from->fd;
    s->arena = from->arena;
    from->fd = -1;
    from->arena = NULL;
    return true;
}

static pd_status make_memfd(const char *op, pd_stage *s) {
    s->fd = pd_fault_hit() ? (errno = ENOMEM, -1) : memfd_create("pydist-stage", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s->fd < 0 && errno == ENOMEM) return pd_fail(PD_E_MEMORY, "%s: cannot make an arena", op);
    if (s->fd < 0 || ftruncate(s->fd, (off_t)s->parts.bytes)) return pd_file_fail(op, "the arena", errno);
    if (fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return pd_file_fail(op, "the arena", errno);
    return map_arena(op, s, s->fd, 0);
}

static pd_status make_file(const char *op, pd_stage *s, const char *path, int64_t offset) {
    const pd_file_ops *calls = pd_file_calls;
    pd_open_file file;
    PD_TRY(pd_file_status(op, path, calls->open(path, O_RDWR | O_CREAT | O_EXCL, 0666, &file)));
    pd_status status = pd_file_status(op, path, calls->ftruncate(&file, offset + s->parts.bytes));
    PD_THEN(map_arena(op, s, file.fd, offset));
    int number = calls->close(&file); /* of two errors, the first one is told */
    return status ? PD_TRAIL(status) : pd_file_status(op, path, number);
}

static pd_status start_threads(const char *op, pd_stage *s, int threads) {
    impl *m = s->impl;
    pd_status status = PD_OK;
    pthread_mutex_lock(&lock); /* the threads end behind it */
    m->forks = forks;
    for (int64_t i = 0; i < s->parts.count; i++)
        if (s->parts.part[i].writes) s->parts.part[i].seen = *s->parts.part[i].writes;
    while (m->threads < threads && !status) {
        status = pd_os_thread_start(op, &m->thread[m->threads], copier, s);
        if (!status) m->threads++;
    }
    m->running = m->threads;
    if (m->running) atomic_fetch_add_explicit(&pd_stages_open, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    return PD_TRAIL(status);
}

pd_status pd_stage_start(const char *op, pd_parts *parts, int threads, const char *path, int64_t offset,
                         pd_stage *from, pd_stage **out) {
    pd_stage *s = NULL;
    pthread_once(&once, prepare);
    pd_status status = pd_calloc(sizeof *s, op, &s);
    if (status) {
        pd_parts_free(parts);
        return PD_TRAIL(status);
    }
    *s = (pd_stage){.parts = *parts, .fd = -1};
    int64_t bytes = parts->bytes, spans = bytes / SPAN + (bytes % SPAN != 0);
    *parts = (pd_parts){0};
    if (threads > spans) threads = (int)spans;
    PD_THEN(pd_calloc(sizeof *s->impl, op, &s->impl));
    if (!status) s->impl->op = op;
    if (!status && path) status = make_file(op, s, path, offset);
    else if (!status && !take_arena(s, from)) status = make_memfd(op, s);
    PD_THEN(start_threads(op, s, threads));
    if (status) pd_stage_free(s);
    else *out = s;
    return PD_TRAIL(status);
}

/* Under the lock. */
static bool has_ended(const impl *m) { return !m->running || m->forks != forks; }

bool pd_stage_ended(pd_stage *s, int64_t ns) {
    pthread_mutex_lock(&lock);
    int64_t until = ns ? pd_os_now() + ns : 0, left;
    while (!has_ended(s->impl) && ns && (left = until - pd_os_now()) > 0) pd_os_cond_wait(&ended, &lock, left);
    bool result = has_ended(s->impl);
    pthread_mutex_unlock(&lock);
    return result;
}

pd_status pd_stage_result(pd_stage *s) {
    impl *m = s->impl;
    pthread_mutex_lock(&lock);
    bool cut = m->running != 0;
    pd_status status = cut ? PD_OK : m->status;
    if (status) pd_error_restore(&m->error);
    pthread_mutex_unlock(&lock);
    if (status) return PD_TRAIL(status);
    if (cut) return pd_fail(PD_E_RUNTIME, "%s: the process was forked before the copy ended", m->op);
    if (m->cancelled) return pd_fail(PD_E_RUNTIME, "%s: the copy was cancelled", m->op);
    return PD_OK;
}

void pd_stage_cancel(pd_stage *s) {
    impl *m = s->impl;
    pthread_mutex_lock(&lock);
    bool here = m->forks == forks, join = here && !m->joined;
    if (!has_ended(m)) m->cancelled = true;
    m->joined |= here;
    pthread_mutex_unlock(&lock);
    m->stop = true;
    for (int i = 0; join && i < m->threads; i++) pd_os_thread_join(m->thread[i]);
    while (!pd_stage_ended(s, SLICE_NS)) continue; /* another thread joins */
}

void pd_stage_free(pd_stage *s) {
    if (s->impl) pd_stage_cancel(s);
    if (s->arena) munmap(s->arena, (size_t)s->parts.bytes);
    if (s->fd >= 0) close(s->fd);
    pd_parts_free(&s->parts);
    pd_free(s->impl);
    pd_free(s);
}

bool pd_stage_wait_at_door(void) {
    pthread_mutex_lock(&lock);
    if (pd_stages_open) pd_os_cond_wait(&ended, &lock, SLICE_NS);
    bool open = !pd_stages_open;
    pthread_mutex_unlock(&lock);
    return open;
}
