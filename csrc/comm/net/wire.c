#include "comm/net/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

struct pd_wire_out {
    pd_wire_out *next;
    size_t sent, bytes;
    int handle;
    char data[];
};

void pd_wire_init(pd_wire *w, int fd, size_t limit) {
    *w = (pd_wire){.fd = fd, .limit = limit, .handle = -1};
    w->last = &w->first;
}

static void close_handle(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void pop(pd_wire *w) {
    pd_wire_out *o = w->first;
    w->first = o->next;
    if (!w->first) w->last = &w->first;
    close_handle(&o->handle);
    pd_free(o);
}

void pd_wire_fini(pd_wire *w) {
    while (w->first) pop(w);
    close_handle(&w->handle);
    close_handle(&w->fd);
    pd_free(w->body);
    w->body = NULL;
}

pd_status pd_wire_reserve(pd_wire *w) { return pd_grow(&w->body, &w->cap, w->limit + 1, 1, "control message"); }

static pd_wire_state end(pd_wire *w, pd_wire_state state, const char *why) {
    w->why = why;
    return w->ended = state;
}

/* Calls recvmsg once; a descriptor becomes w->handle. Returns the number of bytes, 0 at the end, -1 with errno. */
static ssize_t take(pd_wire *w, void *to, size_t n) {
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec io = {.iov_base = to, .iov_len = n};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
    if (w->handles) {
        m.msg_control = control.space;
        m.msg_controllen = CMSG_LEN(sizeof(int)); /* CMSG_SPACE has room for two; the kernel closes others */
    }
    ssize_t got;
    do got = recvmsg(w->fd, &m, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got <= 0 || !w->handles) return got;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        close_handle(&w->handle);
        memcpy(&w->handle, CMSG_DATA(c), sizeof(int));
    }
    return got;
}

pd_wire_state pd_wire_read(pd_wire *w) {
    if (w->ended) return w->ended;
    if (w->whole) { /* the frame before this one is used up */
        close_handle(&w->handle);
        w->got = 0;
        w->whole = false;
    }
    for (;;) {
        size_t want = sizeof w->head;
        char *to = (char *)&w->head + w->got;
        if (w->got >= sizeof w->head) {
            to = w->body + (w->got - sizeof w->head);
            want += w->head.bytes;
        }
        if (w->got < want) {
            ssize_t n = take(w, to, want - w->got);
            if (n == 0)
                return end(w, PD_WIRE_CLOSED,
                           w->got ? "the connection was closed in the middle of a message" : "closed");
            if (n < 0) return errno == EAGAIN ? PD_WIRE_MORE : end(w, PD_WIRE_CLOSED, strerror(errno));
            w->got += (size_t)n;
        }
        if (w->got == sizeof w->head && want == sizeof w->head) {
            if (w->head.magic != PD_WIRE_MAGIC)
                return end(w, PD_WIRE_BAD, "the data are not valid, or come from another version of pydist");
            if (w->head.bytes > w->limit) return end(w, PD_WIRE_BAD, "the message is too long");
            if (w->head.handles > w->handles)
                return end(w, PD_WIRE_BAD, "the message brings a file descriptor before the handshake");
            if (pd_grow(&w->body, &w->cap, (size_t)w->head.bytes + 1, 1, "control message"))
                return end(w, PD_WIRE_BAD, "out of memory");
            want += w->head.bytes;
        }
        if (w->got < want || w->got < sizeof w->head) continue;
        if (w->head.handles != (w->handle >= 0)) return end(w, PD_WIRE_BAD, "the message's file descriptor is missing");
        w->body[w->head.bytes] = 0; /* ends the text, which is last in a payload */
        w->whole = true;
        return PD_WIRE_FRAME;
    }
}

pd_status pd_wire_queue(pd_wire *w, int kind, uint32_t id, const void *head, size_t head_bytes, const void *body,
                        size_t body_bytes, int handle) {
    pd_frame f = {PD_WIRE_MAGIC, (uint16_t)kind, handle >= 0, (uint32_t)(head_bytes + body_bytes), id};
    pd_wire_out *o;
    PD_TRY(pd_malloc(sizeof *o + sizeof f + f.bytes, "control message", &o));
    *o = (pd_wire_out){.bytes = sizeof f + f.bytes, .handle = -1};
    if (handle >= 0 && (o->handle = fcntl(handle, F_DUPFD_CLOEXEC, 0)) < 0) {
        pd_free(o);
        return pd_fail(PD_E_OS, "control: cannot duplicate a descriptor: %s", strerror(errno));
    }
    memcpy(o->data, &f, sizeof f);
    if (head_bytes) memcpy(o->data + sizeof f, head, head_bytes);
    if (body_bytes) memcpy(o->data + sizeof f + head_bytes, body, body_bytes);
    *w->last = o;
    w->last = &o->next;
    w->pending += o->bytes;
    return PD_OK;
}

pd_wire_state pd_wire_flush(pd_wire *w) {
    while (w->first) {
        pd_wire_out *o = w->first;
        union {
            struct cmsghdr align;
            char space[CMSG_SPACE(sizeof(int))];
        } control = {0};
        struct iovec io = {.iov_base = o->data + o->sent, .iov_len = o->bytes - o->sent};
        struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
        if (o->handle >= 0) { /* is sent with the first byte */
            m.msg_control = control.space;
            m.msg_controllen = sizeof control.space;
            struct cmsghdr *c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(c), &o->handle, sizeof(int));
        }
        ssize_t n = sendmsg(w->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return PD_WIRE_MORE;
        if (n < 0) { /* what the peer has sent before may still be read */
            w->why = strerror(errno);
            return PD_WIRE_CLOSED;
        }
        close_handle(&o->handle);
        o->sent += (size_t)n;
        w->pending -= (size_t)n;
        if (o->sent == o->bytes) pop(w);
    }
    return PD_WIRE_MORE;
}
