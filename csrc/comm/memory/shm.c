#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "comm/memory/transport.h"
#include "device/shared.h"

static void detach(pd_region *r) {
    if (r->ptr) pd_shared_unmap(r->ptr, r->bytes);
    if (r->ptr && r->handle >= 0) close((int)r->handle);
    *r = (pd_region){.handle = -1};
}

static pd_status new_region(pd_status (*make)(size_t, void **, int *), size_t bytes, pd_region *out) {
    int fd;
    void *ptr;
    PD_TRY(make(bytes, &ptr, &fd));
    *out = (pd_region){.ptr = ptr, .bytes = bytes, .handle = fd};
    return PD_OK;
}

static pd_status alloc(size_t bytes, pd_region *out) { return new_region(pd_shared_new, bytes, out); }
static pd_status alloc_sparse(size_t bytes, pd_region *out) { return new_region(pd_shared_new_sparse, bytes, out); }

static pd_status attach(intptr_t handle, size_t bytes, pd_region *out) {
    void *ptr = NULL;
    pd_status status = pd_shared_map((int)handle, bytes, &ptr);
    close((int)handle);
    if (status == PD_E_VALUE)
        return pd_fail(PD_E_DIST, "segment: cannot attach another rank's segment: %s", pd_error_get()->text);
    if (!status) *out = (pd_region){.ptr = ptr, .bytes = bytes, .handle = -1};
    return status;
}

static void spot(const pd_region *own, pd_spot *out) {
    struct stat s = {0};
    fstat((int)own->handle, &s);
    *out = (pd_spot){.pid = pd_os_pid(), .number = (int32_t)own->handle, .device = s.st_dev, .inode = s.st_ino};
}

/* The kernel opens it for processes of the same user that see each other. The inode shows whether it is the right
   one. */
static bool open_spot(const pd_spot *p, size_t bytes, pd_region *out) {
    char path[64];
    struct stat s;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)p->pid, (int)p->number);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    if (!fstat(fd, &s) && s.st_dev == p->device && s.st_ino == p->inode) return !attach(fd, bytes, out);
    close(fd);
    return false;
}

static void seal(pd_region *own) {
    if (own->handle >= 0) close((int)own->handle);
    own->handle = -1;
}

static void privatise(pd_region *own) {
    void *p = mmap(NULL, own->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        pd_log(PD_LOG_WARN, "no memory to copy %zu bytes of a failed group: other ranks may still write to these bytes",
               own->bytes);
        return;
    }
    memcpy(p, own->ptr, own->bytes);
    /* A single call swaps the pages, so no thread of ours ever sees a hole. */
    if (mremap(p, own->bytes, own->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, own->ptr) == MAP_FAILED) munmap(p, own->bytes);
}

const pd_transport pd_transport_shm = {
    .name = "shm", .spot = spot, .open = open_spot, .alloc = alloc,
    .alloc_sparse = alloc_sparse, .attach = attach, .seal = seal, .detach = detach,
    .privatise = privatise,
};
