#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "comm/mesh/tcp_impl.h"

/* Stores the error, unless there is one already. */
static void fail(pd_tcp *m, int peer, const char *what, const char *why) {
    if (m->error.kind) return;
    (void)pd_fail(PD_E_DIST, "tcp: rank %d cannot %s rank %d: %s", pd_tcp_name(m, m->rank), what, pd_tcp_name(m, peer),
                  why);
    pd_error_save(&m->error);
}

static pd_status check(const pd_mesh *mesh) {
    const pd_tcp *m = (const pd_tcp *)mesh;
    return m->error.kind ? pd_error_restore(&m->error) : PD_OK; }

static int64_t lost(const pd_mesh *mesh, int peer, bool we_wait) {
    const pd_tcp *m = (const pd_tcp *)mesh;
    const pd_tcp_peer *p = &m->peers[peer];
    return we_wait || p->missed ? p->closed : 0;
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

static void queue(pd_mesh *mesh, int peer, pd_mesh_frame head, const void *data) {
    pd_tcp *m = (pd_tcp *)mesh;
    pd_tcp_peer *p = &m->peers[peer];
    p->missed |= p->deaf;
    m->missed |= p->deaf;
    if (p->deaf) return;
    if (p->queued == PD_MESH_QUEUE) {
        fail(m, peer, "send to", "the queue is full: it holds more than a round of a collective sends");
        return;
    }
    m->sending += !p->queued;
    p->out[p->queued++] = (pd_tcp_out){.head = head, .data = data};
}

static void end_queue(pd_tcp *m, pd_tcp_peer *p) {
    m->sending -= p->queued > 0;
    p->queued = 0;
}

/* The peer receives nothing any more. Bytes that it has sent may still have to be read; the control plane says why it
   is gone. */
static void turn_deaf(pd_tcp *m, pd_tcp_peer *p) {
    if (!p->closed) p->closed = pd_os_now();
    p->deaf = true;
    p->missed |= p->queued > 0;
    m->missed |= p->queued > 0;
    end_queue(m, p);
}

/* The queue as one vector, without the bytes that have been sent. */
static size_t gather(pd_tcp_peer *p, struct iovec *io) {
    size_t n = 0;
    for (int i = 0; i < p->queued; i++) {
        pd_tcp_out *o = &p->out[i];
        size_t head = sizeof o->head, skip = o->sent < head ? o->sent : head, past = o->sent - skip;
        if (skip < head) io[n++] = (struct iovec){(char *)&o->head + skip, head - skip};
        if (past < o->head.bytes) io[n++] = (struct iovec){(char *)(uintptr_t)o->data + past, o->head.bytes - past};
    }
    return n;
}

static void advance(pd_tcp *m, pd_tcp_peer *p, size_t n) {
    int gone = 0;
    while (gone < p->queued) {
        pd_tcp_out *o = &p->out[gone];
        size_t rest = sizeof o->head + o->head.bytes - o->sent;
        if (n < rest) {
            o->sent += n;
            break;
        }
        n -= rest;
        gone++;
    }
    if (gone == p->queued) end_queue(m, p);
    else if (gone) memmove(p->out, p->out + gone, (size_t)(p->queued -= gone) * sizeof *p->out);
}

static void flush_peer(pd_tcp *m, int peer) {
    pd_tcp_peer *p = &m->peers[peer];
    struct iovec io[2 * PD_MESH_QUEUE];
    while (p->queued) {
        struct msghdr msg = {.msg_iov = io, .msg_iovlen = gather(p, io)};
        if (pd_fault_now(PD_FAULT_SEND)) {
            fail(m, peer, "send to", "PYDIST_FAULT");
            return;
        }
        ssize_t n = sendmsg(p->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) {
            turn_deaf(m, p);
            return;
        }
        advance(m, p, (size_t)n);
    }
}

static bool flush(pd_mesh *mesh) {
    pd_tcp *m = (pd_tcp *)mesh;
    for (int d = 1; m->sending && d < m->size; d++) flush_peer(m, (m->rank + d) % m->size);
    return !m->sending && !m->missed && !m->error.kind;
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */

static void close_peer(pd_tcp *m, int peer) {
    pd_tcp_peer *p = &m->peers[peer];
    turn_deaf(m, p);
    pd_fork_watch_drop(&p->watch);
    close(p->fd);
    p->fd = -1;
}

/* Begins to receive the frame whose head has come. */
static bool begin_frame(pd_tcp *m, int peer, const pd_mesh_frame *f) {
    pd_tcp_peer *p = &m->peers[peer];
    size_t end = (size_t)f->at + (f->bytes ? f->bytes : sizeof(uint32_t));
    if (f->zero || end > m->bytes || (!f->bytes && f->at % sizeof(uint32_t))) {
        fail(m, peer, "read messages of", "the data connection carries data that are not valid");
        return false;
    }
    p->to = m->parts[peer] + f->at;
    p->left = f->bytes;
    if (!f->bytes) atomic_store_explicit((atomic_uint *)p->to, f->value, memory_order_release);
    return true;
}

static bool use_stage(pd_tcp *m, int peer) {
    pd_tcp_peer *p = &m->peers[peer];
    for (;;) {
        size_t n = p->end - p->begin;
        if (p->left) {
            if (n > p->left) n = p->left;
            memcpy(p->to, p->stage + p->begin, n);
            p->to += n;
            p->left -= n;
            p->begin += n;
            if (p->left) break;
            continue;
        }
        pd_mesh_frame f;
        if (n < sizeof f) break;
        memcpy(&f, p->stage + p->begin, sizeof f);
        p->begin += sizeof f;
        if (!begin_frame(m, peer, &f)) return false;
    }
    memmove(p->stage, p->stage + p->begin, p->end - p->begin);
    p->end -= p->begin;
    p->begin = 0;
    return true;
}

static void pump(pd_mesh *mesh, int peer) {
    pd_tcp *m = (pd_tcp *)mesh;
    pd_tcp_peer *p = &m->peers[peer];
    while (p->fd >= 0 && !m->error.kind) {
        struct iovec io[2] = {{p->to, p->left}, {p->stage + p->end, sizeof p->stage - p->end}};
        struct msghdr msg = {.msg_iov = p->left ? io : io + 1, .msg_iovlen = p->left ? 2 : 1};
        size_t want = p->left + sizeof p->stage - p->end;
        ssize_t n = recvmsg(p->fd, &msg, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n > 0 && pd_fault_now(PD_FAULT_RECV)) {
            fail(m, peer, "receive from", "PYDIST_FAULT");
            return;
        }
        if (n <= 0) {
            close_peer(m, peer);
            return;
        }
        size_t direct = (size_t)n < p->left ? (size_t)n : p->left;
        p->to += direct;
        p->left -= direct;
        p->end += (size_t)n - direct;
        if (!use_stage(m, peer) || (size_t)n < want) return; /* a short read: nothing more has come */
    }
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void wait_for(pd_mesh *mesh, int64_t ns) {
    pd_tcp *m = (pd_tcp *)mesh;
    uint64_t count;
    for (int r = 0; r < m->size; r++) {
        const pd_tcp_peer *p = &m->peers[r];
        m->polls[r] = (struct pollfd){.fd = p->fd, .events = p->queued ? POLLIN | POLLOUT : POLLIN};
    }
    m->polls[m->size] = (struct pollfd){.fd = m->wake, .events = POLLIN};
    struct timespec t = {.tv_nsec = ns < PD_SLICE_NS ? ns : PD_SLICE_NS};
    if (ppoll(m->polls, (nfds_t)m->size + 1, &t, NULL) <= 0) return;
    for (int r = 0; r < m->size; r++) {
        if (m->polls[r].revents & POLLOUT) flush_peer(m, r);
        if (m->polls[r].revents & ~POLLOUT) pump(mesh, r);
    }
    if (m->polls[m->size].revents && read(m->wake, &count, sizeof count) < 0) return; /* another wake has emptied it */
}

static void wake(pd_mesh *mesh) {
    pd_tcp *m = (pd_tcp *)mesh;
    uint64_t one = 1;
    if (write(m->wake, &one, sizeof one) < 0) return; /* the counter is full: it is awake */
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void free_tcp(pd_mesh *mesh) {
    pd_tcp *m = (pd_tcp *)mesh;
    for (int r = 0; r < m->size; r++)
        if (m->peers[r].fd >= 0) {
            pd_fork_watch_drop(&m->peers[r].watch);
            close(m->peers[r].fd);
        }
    if (m->wake >= 0) close(m->wake);
    pd_free(m->polls);
    pd_free(m);
}

static pd_status make(const pd_mesh_plan *plan, pd_mesh **out) {
    pd_tcp *m;
    pd_status status = PD_OK;
    size_t size = (size_t)plan->size;
    if (plan->bytes > UINT32_MAX)
        return pd_fail(PD_E_VALUE, "tcp: the slots have %zu bytes in all (expected less than 4 GiB)", plan->bytes);
    PD_TRY(pd_calloc(sizeof *m + size * sizeof *m->peers, "tcp", &m));
    m->base.kind = &pd_mesh_tcp;
    m->rank = plan->rank;
    m->ranks = plan->ranks;
    m->size = (int)size;
    m->parts = plan->parts;
    m->bytes = plan->bytes;
    for (size_t r = 0; r < size; r++) m->peers[r].fd = -1;
    m->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    PD_TRY_TO(fail, pd_calloc((size + 1) * sizeof *m->polls, "tcp", &m->polls));
    if (m->wake < 0) PD_TRY_TO(fail, pd_fail(PD_E_OS, "tcp: cannot make an event descriptor: %s", strerror(errno)));
    PD_TRY_TO(fail, pd_tcp_meet(plan, m));
    *out = &m->base;
    return PD_OK;
fail:
    free_tcp(&m->base);
    return status;
}

const pd_mesh_kind pd_mesh_tcp = {
    .name = "tcp", .make = make, .free = free_tcp, .queue = queue, .flush = flush, .pump = pump, .wait = wait_for,
    .wake = wake, .check = check, .lost = lost,
};
