#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/os.h"

/* ---- the trace --------------------------------------------------------------------------------------------------- */

static struct {
    atomic_bool on;
    pthread_mutex_t lock;
    bool lost;
    char *bytes;
    size_t used, room;
} trace = {.lock = PTHREAD_MUTEX_INITIALIZER};
static atomic_int opened; /* open files so far */

typedef struct record {
    pd_file_op op;
    int file;
    int64_t at;
    const char *a, *b;
    const void *data;
    size_t bytes;
} record;

static size_t put(size_t at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) trace.bytes[at++] = (char)(value >> (8 * i));
    return at;
}

static void append(const record *r) {
    size_t a = r->a ? strlen(r->a) : 0, b = r->b ? strlen(r->b) : 0, at = trace.used;
    if (pd_grow(&trace.bytes, &trace.room, at + 32 + a + b + r->bytes, 1, "trace")) {
        trace.lost = true;
        return;
    }
    at = put(at, (uint64_t)r->op, 4);
    at = put(at, (uint64_t)(int64_t)r->file, 4);
    at = put(at, (uint64_t)r->at, 8);
    at = put(at, a, 4);
    at = put(at, b, 4);
    at = put(at, r->bytes, 8);
    if (a) memcpy(trace.bytes + at, r->a, a);
    if (b) memcpy(trace.bytes + at + a, r->b, b);
    if (r->bytes) memcpy(trace.bytes + at + a + b, r->data, r->bytes);
    trace.used = at + a + b + r->bytes;
}

/* Records a call that returned `number`; returns that. */
static int traced(int number, record r) {
    if (number || !atomic_load_explicit(&trace.on, memory_order_relaxed)) return number;
    pthread_mutex_lock(&trace.lock);
    if (trace.on && !trace.lost) append(&r);
    pthread_mutex_unlock(&trace.lock);
    return 0;
}

pd_status pd_file_trace(bool on, char **out, size_t *bytes) {
    pthread_mutex_lock(&trace.lock);
    bool lost = trace.lost;
    *out = trace.bytes;
    *bytes = trace.used;
    trace.bytes = NULL;
    trace.used = trace.room = 0;
    trace.lost = false;
    trace.on = on;
    pthread_mutex_unlock(&trace.lock);
    if (!lost) return PD_OK;
    pd_free(*out);
    *out = NULL;
    return pd_fail(PD_E_MEMORY, "trace: a record did not fit in memory");
}

/* ---- the system's calls ------------------------------------------------------------------------------------------ */

/* Before each call that changes the disk. The process ends as if its power were cut: nothing is flushed or closed by
   it. */
static void changes(void) { pd_fault_end_process(PD_FAULT_KILL); }

#define RETRY(call)                         \
    __extension__({                         \
        int rc_;                            \
        do rc_ = (int)(call);               \
        while (rc_ < 0 && errno == EINTR);  \
        rc_ < 0 ? errno : 0;                \
    })

static int sys_open(const char *path, int flags, unsigned mode, pd_open_file *out) {
    bool makes = flags & O_CREAT;
    if (makes) changes();
    int number = RETRY(out->fd = open(path, flags | O_CLOEXEC, mode));
    out->number = number ? -1 : atomic_fetch_add_explicit(&opened, 1, memory_order_relaxed);
    return traced(number, (record){.op = PD_FILE_OPEN, .file = out->number, .a = path,
                                   .at = makes ? 1 : (flags & O_ACCMODE) == O_RDONLY ? 0 : 2});
}

static int sys_pwrite(const pd_open_file *f, const void *from, size_t bytes, int64_t at) {
    changes();
    if (pd_fault_now(PD_FAULT_WRITE)) return EIO;
    if (pd_fault_now(PD_FAULT_NOSPACE)) return ENOSPC;
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(f->fd, (const char *)from + done, bytes - done, at + (int64_t)done);
        if (n < 0 && errno != EINTR) return errno;
        if (n == 0) return EIO; /* POSIX leaves it open; a loop would not end */
        if (n > 0) done += (size_t)n;
    }
    return traced(0, (record){.op = PD_FILE_WRITE, .file = f->number, .at = at, .data = from, .bytes = bytes});
}

static int sys_pread(const pd_open_file *f, void *to, size_t bytes, int64_t at, size_t *got) {
    for (*got = 0; *got < bytes;) {
        ssize_t n = pread(f->fd, (char *)to + *got, bytes - *got, at + (int64_t)*got);
        if (n == 0) return 0;
        if (n > 0) *got += (size_t)n;
        else if (errno == EINVAL && *got) return 0; /* a direct read up to the file's end left an odd offset */
        else if (errno != EINTR) return errno;
    }
    return 0;
}

static int sys_ftruncate(const pd_open_file *f, int64_t bytes) {
    changes();
    return traced(RETRY(ftruncate(f->fd, bytes)), (record){.op = PD_FILE_TRUNCATE, .file = f->number, .at = bytes});
}

static int sys_fdatasync(const pd_open_file *f) {
    changes();
    if (pd_fault_now(PD_FAULT_FSYNC)) return EIO;
    return traced(RETRY(fdatasync(f->fd)), (record){.op = PD_FILE_DATASYNC, .file = f->number});
}

static int sys_fsync(const pd_open_file *f) {
    changes();
    if (pd_fault_now(PD_FAULT_FSYNC)) return EIO;
    return traced(RETRY(fsync(f->fd)), (record){.op = PD_FILE_SYNC, .file = f->number});
}

static int sys_close(pd_open_file *f) {
    int rc = close(f->fd); /* after EINTR, too, Linux has closed it */
    f->fd = -1;
    return rc < 0 && errno != EINTR ? errno : 0;
}

static int sys_mkdir(const char *path, unsigned mode) {
    changes();
    return traced(RETRY(mkdir(path, mode)), (record){.op = PD_FILE_MKDIR, .file = -1, .a = path});
}

static int sys_rename(const char *from, const char *to) {
    struct stat s;
    changes();
    if (pd_fault_now(PD_FAULT_RENAME)) return EIO;
    int number = RETRY(renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE));
    if (number == EINVAL || number == ENOSYS) /* the file system knows no flags */
        number = !lstat(to, &s) ? EEXIST : errno != ENOENT ? errno : RETRY(rename(from, to));
    return traced(number, (record){.op = PD_FILE_RENAME, .file = -1, .a = from, .b = to});
}

static int sys_exchange(const char *a, const char *b) {
    changes();
    if (pd_fault_now(PD_FAULT_RENAME)) return EIO;
    return traced(RETRY(renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE)),
                  (record){.op = PD_FILE_EXCHANGE, .file = -1, .a = a, .b = b});
}

static int sys_link(const char *from, const char *to) {
    changes();
    return traced(RETRY(link(from, to)), (record){.op = PD_FILE_LINK, .file = -1, .a = from, .b = to});
}

static int sys_unlink(const char *path) {
    changes();
    return traced(RETRY(unlink(path)), (record){.op = PD_FILE_UNLINK, .file = -1, .a = path});
}

static int sys_rmdir(const char *path) {
    changes();
    return traced(RETRY(rmdir(path)), (record){.op = PD_FILE_RMDIR, .file = -1, .a = path});
}

static const pd_file_ops system_calls = {
    .open = sys_open,           .pwrite = sys_pwrite,       .pread = sys_pread,   .ftruncate = sys_ftruncate,
    .fdatasync = sys_fdatasync, .fsync = sys_fsync,         .close = sys_close,   .mkdir = sys_mkdir,
    .rename = sys_rename,       .exchange = sys_exchange,   .link = sys_link,     .unlink = sys_unlink,
    .rmdir = sys_rmdir,
};
const pd_file_ops *pd_file_calls = &system_calls;

/* ---- around them ------------------------------------------------------------------------------------------------- */

/* A file that open(2) makes with O_DIRECT stays there if its file system then says EINVAL, so it is set afterwards. */
bool pd_file_set_direct(const pd_open_file *f) {
    struct statfs s;
    int flags = fcntl(f->fd, F_GETFL);
    if (fstatfs(f->fd, &s) || s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC) return false;
    return flags >= 0 && fcntl(f->fd, F_SETFL, flags | O_DIRECT) == 0;
}

void pd_file_set_cached(const pd_open_file *f) {
    int flags = fcntl(f->fd, F_GETFL);
    if (flags >= 0) fcntl(f->fd, F_SETFL, flags & ~O_DIRECT);
}

pd_status pd_file_fail(const char *op, const char *path, int number) {
    char text[128];
    pd_status status =
        pd_fail(PD_E_OS, "%s: %s: %s", op, path, strerror_r(number, text, sizeof text));
    pd_error_set_number(number);
    return status;
}
