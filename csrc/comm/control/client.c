#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include "base/flags.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/control/protocol.h"
#include "comm/control/status_report.h"
#include "comm/net/dial.h"

#define GOODBYE_NS 1000000000 /* how long a leaving rank waits for a server that does not read */
#define AT_ONCE_NS 500000000  /* even a server with too many strangers gives each of them more time */
#define TRIES 4               /* after so many connections that were ended at once, the server refuses us */

typedef struct request { /* a store call under way; lives on its caller's stack */
    struct request *next;
    uint32_t id;
    bool done;
    pd_status status;
    pd_store_reply reply;
    pd_error error;
} request;

typedef struct client {
    pd_link link; /* first: a client is a link */
    pd_fork_watch watch;
    pd_os_thread thread;
    pthread_mutex_t lock; /* guards sending and the requests */
    pthread_cond_t change;
    pd_wire wire; /* only the thread reads; writers hold the lock */
    request *requests;
    uint32_t next_id;
    bool lost;   /* no answers will come any more */
    bool closed; /* the server ended the connection before it let us in */
} client;

/* ---- sending ----------------------------------------------------------------------------------------------------- */

/* Needs the lock. The server never stops reading, so a full socket is soon empty, or the server is gone. */
static pd_status send_frame(client *c, int kind, uint32_t id, const void *head, size_t head_bytes, const void *body,
                            size_t n, int handle) {
    int64_t deadline = pd_os_now() + GOODBYE_NS;
    if (c->lost)
        return pd_fail(PD_E_DIST,
                       "control: the connection to the control server is lost (expected the server to run until all "
                       "ranks have left)");
    PD_TRY(pd_wire_queue(&c->wire, kind, id, head, head_bytes, body, n, handle));
    while (pd_wire_flush(&c->wire) != PD_WIRE_CLOSED && c->wire.pending && pd_os_now() < deadline)
        poll(&(struct pollfd){.fd = c->wire.fd, .events = POLLOUT}, 1, 10);
    return c->wire.pending ? pd_fail(PD_E_DIST,
                                     "control: the control server does not read messages, or is gone (expected it to "
                                     "read within a few seconds)")
                           : PD_OK;
}

static void tell(pd_link *link, const pd_link_event *event, const char *text) {
    client *c = (client *)link;
    size_t n = strlen(text), skip = n > PD_CONTROL_TEXT ? n - PD_CONTROL_TEXT : 0;
    pthread_mutex_lock(&c->lock);
    send_frame(c, PD_CONTROL_EVENT, 0, event, sizeof *event, text + skip, n - skip, -1);
    pthread_mutex_unlock(&c->lock);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static void on_reply(client *c) {
    pd_wire *w = &c->wire;
    pd_control_reply head;
    if (w->head.bytes < sizeof head) return;
    memcpy(&head, w->body, sizeof head);
    size_t n = w->head.bytes - sizeof head;
    pthread_mutex_lock(&c->lock);
    request *r = c->requests;
    while (r && r->id != w->head.id) r = r->next;
    if (r && !r->done) {
        r->reply = (pd_store_reply){.amount = head.amount, .handle = PD_NO_HANDLE};
        if (head.status > PD_OK && head.status < PD_STATUS_COUNT)
            r->status = pd_fail((pd_status)head.status, "%s", w->body + sizeof head);
        else if (n) r->status = pd_malloc(n, "store", &r->reply.data);
        if (!r->status && n) memcpy(r->reply.data, w->body + sizeof head, r->reply.bytes = n);
        if (!r->status && w->handle >= 0) {
            r->reply.handle = w->handle;
            w->handle = -1;
        }
        if (r->status) pd_error_save(&r->error);
        r->done = true;
        pthread_cond_broadcast(&c->change);
    }
    pthread_mutex_unlock(&c->lock);
}

static void on_lost(client *c, const char *why) {
    pd_link_hear(&c->link, &(pd_link_event){.kind = PD_EVENT_LOST, .rank = c->link.rank}, why);
    pthread_mutex_lock(&c->lock);
    c->lost = true;
    pthread_cond_broadcast(&c->change);
    pthread_mutex_unlock(&c->lock);
}

/* Waits for more bytes. False: the server, which sends a ping every second, has been silent for too long, and we were
   not stopped meanwhile. */
static bool hear_more(client *c, int64_t *heard, int64_t *looked) {
    int64_t silent = (int64_t)(pd_flags_get()->SILENT * 1e9), now;
    int n = poll(&(struct pollfd){.fd = c->wire.fd, .events = POLLIN}, 1, PD_HEARTBEAT_NS / 1000000);
    now = pd_os_now();
    if (n || now - *looked > 3 * PD_HEARTBEAT_NS) *heard = now;
    *looked = now;
    return silent <= 0 || now - *heard < (silent > PD_SILENCE_NS ? silent : PD_SILENCE_NS);
}

static void answer(client *c, int asker) {
    char text[sizeof c->link.places[0].text];
    int on = pd_link_here(&c->link, text, sizeof text);
    pd_link_event event = {.kind = PD_EVENT_HERE, .rank = c->link.rank, .status = asker, .epoch = (uint32_t)(on + 1)};
    tell(&c->link, &event, text);
}

static void *run(void *arg) {
    client *c = arg;
    int64_t heard = pd_os_now(), looked = heard;
    for (;;) {
        pd_wire_state state = pd_wire_read(&c->wire);
        if (state == PD_WIRE_MORE) {
            bool here = hear_more(c, &heard, &looked);
            pd_status_report(&c->link);
            if (here) continue;
            on_lost(c, "this rank has heard nothing from it for too long: it is stopped, or its network is cut");
            return NULL;
        } else if (state != PD_WIRE_FRAME) {
            on_lost(c, c->wire.why);
            return NULL;
        } else if (c->wire.head.kind == PD_CONTROL_PING) {
            pthread_mutex_lock(&c->lock);
            send_frame(c, PD_CONTROL_PONG, 0, NULL, 0, NULL, 0, -1);
            pthread_mutex_unlock(&c->lock);
        } else if (c->wire.head.kind == PD_CONTROL_REPLY) {
            on_reply(c);
        } else if (c->wire.head.kind == PD_CONTROL_EVENT && c->wire.head.bytes >= sizeof(pd_link_event)) {
            pd_link_event event;
            memcpy(&event, c->wire.body, sizeof event);
            if (event.kind == PD_EVENT_WHERE) answer(c, event.rank);
            else pd_link_hear(&c->link, &event, c->wire.body + sizeof event);
            pthread_mutex_lock(&c->lock); /* threads that wait for the store look again which ranks are gone */
            pthread_cond_broadcast(&c->change);
            pthread_mutex_unlock(&c->lock);
        }
    }
}

/* ---- store calls ------------------------------------------------------------------------------------------------- */

/* Needs the lock, which it gives up while it sleeps and while the interrupt hook runs. */
static pd_status await(client *c, request *r, const pd_store_call *call) {
    bool waits = call->verb == PD_STORE_GET || call->verb == PD_STORE_WAIT, late = false;
    while (!r->done) {
        if (c->lost) {
            PD_TRY(pd_link_gone(&c->link)); /* this error names the rank that hosted the server */
            return pd_fail(PD_E_DIST,
                           "store: the connection to the control server is lost (expected the server to run until all "
                           "ranks have left)");
        }
        if (call->stop && atomic_load_explicit(call->stop, memory_order_acquire))
            return pd_fail(PD_E_DIST, "store: the wait was cancelled, because the group failed or was destroyed");
        if (waits && late && !call->stop)
            PD_TRY(pd_link_gone(&c->link)); /* a key that is there is answered at once, even after a death */
        if (pd_os_cond_wait(&c->change, &c->lock, PD_SLICE_NS)) continue;
        late = true;
        pthread_mutex_unlock(&c->lock);
        pd_status status = pd_hooks_interrupt(c->link.hooks);
        pthread_mutex_lock(&c->lock);
        if (status) return status;
    }
    return r->status ? pd_error_restore(&r->error) : PD_OK;
}

/* Needs the lock. What could not be sent: the thread hears why, and then the error names the rank that hosted the
   server. */
static pd_status not_sent(client *c, pd_status status) {
    pd_error e;
    pd_error_save(&e);
    for (int64_t deadline = pd_os_now() + GOODBYE_NS; !c->lost && pd_os_now() < deadline;)
        pd_os_cond_wait(&c->change, &c->lock, PD_SLICE_NS);
    PD_TRY(pd_link_gone(&c->link));
    pd_error_restore(&e);
    return status;
}

static pd_status call(pd_link *link, const pd_store_call *call, pd_store_reply *reply) {
    client *c = (client *)link;
    request r = {0};
    pd_control_call head = {.verb = call->verb, .key_bytes = (uint32_t)call->key_bytes, .bytes = (uint32_t)call->bytes,
                            .amount = call->amount, .timeout_ns = call->timeout_ns};
    char text[sizeof head + PD_STORE_KEY];
    memcpy(text, &head, sizeof head);
    memcpy(text + sizeof head, call->key, call->key_bytes);
    void *token = pd_host_release();
    pthread_mutex_lock(&c->lock);
    r.id = ++c->next_id;
    r.next = c->requests;
    c->requests = &r;
    size_t n = sizeof head + call->key_bytes;
    int handle = c->wire.handles ? (int)call->handle : -1; /* tcp cannot carry it */
    pd_status status = send_frame(c, PD_CONTROL_CALL, r.id, text, n, call->data, call->bytes, handle);
    status = status ? not_sent(c, status) : await(c, &r, call);
    for (request **at = &c->requests; *at; at = &(*at)->next)
        if (*at == &r) {
            *at = r.next;
            break;
        }
    pthread_mutex_unlock(&c->lock);
    pd_host_acquire(token);
    if (!status) {
        *reply = r.reply;
    } else if (r.done && !r.status) { /* the answer came just when we gave up */
        pd_free(r.reply.data);
        if (r.reply.handle != PD_NO_HANDLE) close((int)r.reply.handle);
    }
    return status;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void close_link(pd_link *link) {
    client *c = (client *)link;
    tell(link, &(pd_link_event){.kind = PD_EVENT_LEFT, .rank = link->rank}, "");
    shutdown(c->wire.fd, SHUT_RDWR); /* the server still gets what was sent; our thread reads the end of the stream */
    pd_os_thread_join(c->thread);
    pd_fork_watch_drop(&c->watch);
    pd_wire_fini(&c->wire);
    c->wire.fd = -1;
}

static void free_link(pd_link *link) {
    client *c = (client *)link;
    pthread_cond_destroy(&c->change);
    pthread_mutex_destroy(&c->lock);
    pd_link_fini(link);
    pd_free(c);
}

static const pd_link_ops ops = {
    .transport = &pd_transport_shm, .answers = true, .call = call, .tell = tell, .close = close_link, .free = free_link,
};

/* Waits for the next frame of the handshake, which must be of this kind. */
static pd_status await_frame(client *c, int kind, size_t bytes, int64_t deadline) {
    const pd_frame *f = &c->wire.head;
    for (;;) {
        pd_wire_state state = pd_wire_read(&c->wire);
        if (state == PD_WIRE_FRAME && f->kind == PD_CONTROL_REFUSED)
            return pd_fail(PD_E_DIST, "control: the control server refused this rank: %s", c->wire.body);
        if (state == PD_WIRE_FRAME && (f->kind != kind || f->bytes != bytes))
            return pd_fail(
                PD_E_DIST,
                "control: the server's answer is not valid (expected a control server of the same version of pydist)");
        if (state == PD_WIRE_FRAME) return PD_OK;
        if (state == PD_WIRE_CLOSED) {
            c->closed = true;
            return pd_fail(
                PD_E_DIST,
                "control: the server closed the connection of rank %d: it is ending, or has another version of pydist",
                c->link.rank);
        }
        if (state == PD_WIRE_BAD)
            return pd_fail(PD_E_DIST, "control: the server sent a message that is not valid: %s", c->wire.why);
        if (pd_os_now() > deadline)
            return pd_fail(
                PD_E_TIMEOUT,
                "control: the server has not answered rank %d in time (expected an answer within the timeout)",
                c->link.rank);
        poll(&(struct pollfd){.fd = c->wire.fd, .events = POLLIN}, 1, PD_SLICE_NS / 1000000);
        PD_TRY(pd_hooks_interrupt(c->link.hooks));
    }
}

static pd_status say(client *c, int kind, const void *what, size_t bytes) {
    pd_status status = send_frame(c, kind, 0, what, bytes, NULL, 0, -1);
    c->closed = status == PD_E_DIST;
    return status;
}

static pd_status shake_hands(client *c, const uint8_t secret[PD_SECRET_BYTES], int64_t deadline) {
    pd_control_hello h = {.rank = c->link.rank, .world = c->link.world, .pid = pd_os_pid()};
    pd_control_challenge challenge;
    pd_control_welcome welcome;
    uint8_t mac[PD_SHA256_BYTES];
    PD_TRY(pd_os_random(h.nonce, sizeof h.nonce));
    PD_TRY(say(c, PD_CONTROL_HELLO, &h, sizeof h));
    PD_TRY(await_frame(c, PD_CONTROL_CHALLENGE, sizeof challenge, deadline));
    memcpy(&challenge, c->wire.body, sizeof challenge);
    pd_control_mac(secret, "server", &h, challenge.nonce, mac);
    if (!pd_auth_same(mac, challenge.proof, sizeof mac))
        return pd_fail(PD_E_DIST,
                       "control: the server does not know this job's secret (expected the same secret on all ranks)");
    pd_control_mac(secret, "client", &h, challenge.nonce, mac);
    PD_TRY(say(c, PD_CONTROL_PROOF, mac, sizeof mac));
    PD_TRY(await_frame(c, PD_CONTROL_WELCOME, sizeof welcome, deadline));
    memcpy(&welcome, c->wire.body, sizeof welcome);
    pd_control_mac(secret, "token", &h, challenge.nonce, mac);
    for (int i = 0; i < PD_TOKEN_BYTES; i++) c->link.token[i] = welcome.token[i] ^ mac[i];
    c->link.open = welcome.host_rank >= PD_CONTROL_OPEN;
    c->link.host_rank = welcome.host_rank - (c->link.open ? PD_CONTROL_OPEN : 0);
    return PD_OK;
}

/* Connects and shakes hands. Tries again if the server closed the connection because it has too many strangers. */
static pd_status enter(client *c, const char *address, const uint8_t secret[PD_SECRET_BYTES], int64_t deadline,
                       bool patient) {
    const pd_hooks *hooks = c->link.hooks;
    for (int refused = 0;;) {
        int64_t began = pd_os_now();
        int fd;
        PD_TRY(pd_dial(address, deadline, patient, hooks, &fd, c->link.way, sizeof c->link.way));
        c->wire.fd = fd;
        c->closed = false;
        void *token = pd_host_release();
        pd_status status = shake_hands(c, secret, deadline);
        pd_host_acquire(token);
        if (!c->closed) return status;
        refused = pd_os_now() - began < AT_ONCE_NS ? refused + 1 : 0;
        if (refused == TRIES || pd_os_now() >= deadline) return status;
        pd_wire_fini(&c->wire);
        pd_wire_init(&c->wire, -1, PD_CONTROL_PAYLOAD);
        PD_TRY(pd_wire_reserve(&c->wire));
        poll(NULL, 0, PD_SLICE_NS / 1000000);
        PD_TRY(pd_hooks_interrupt(hooks));
    }
}

/* Names that differ between machines, and between namespaces of a machine. */
static size_t machine_text(char *text, size_t size) {
    static const char *const spaces[] = {"/proc/self/ns/net", "/proc/self/ns/pid", "/proc/self/ns/user"};
    size_t used = (size_t)snprintf(text, size, "user %u ", (unsigned)geteuid());
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t more = fd < 0 ? -1 : read(fd, text + used, 64);
    if (fd >= 0) close(fd);
    if (more <= 0) return 0;
    used += (size_t)more;
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        if ((more = readlink(spaces[i], text + used, 48)) <= 0) return 0;
        used += (size_t)more;
    }
    return used;
}

/* Finds out where this rank runs. A rank that is connected over tcp cannot pass descriptors on; ranks of its machine
   may reach its memory by a spot (transport.h). */
static void locate(client *c) {
    struct sockaddr_storage own = {0};
    socklen_t n = sizeof own;
    char text[300];
    const char *given = pd_flags_get()->HOST;
    size_t length = (size_t)snprintf(text, sizeof text, "%s", given);
    if (!c->wire.handles) {
        if (!getsockname(c->wire.fd, (struct sockaddr *)&own, &n))
            pd_auth_text((struct sockaddr *)&own, n, c->link.here, sizeof c->link.here);
        char machine[512];
        size_t known = machine_text(machine, sizeof machine);
        length = known ? (size_t)snprintf(text, sizeof text, "%s at %.*s", given, (int)known, machine)
                       : (size_t)snprintf(text, sizeof text, "rank %d at %s", c->link.rank, c->link.here);
    }
    uint8_t digest[PD_SHA256_BYTES];
    pd_hmac(c->link.token, PD_TOKEN_BYTES, text, length < sizeof text ? length : sizeof text - 1, digest);
    memcpy(&c->link.host, digest, sizeof c->link.host);
}

pd_status pd_control_connect(const char *address, const uint8_t secret[PD_SECRET_BYTES], int rank, int world,
                             double timeout, bool patient, const pd_hooks *hooks, pd_link **out) {
    pd_status status = PD_OK;
    client *c;
    int64_t deadline = pd_os_now() + (int64_t)(timeout * 1e9);
    bool tcp = *address != '@';
    PD_TRY(pd_calloc(sizeof *c, "control connection", &c));
    pd_link_init(&c->link, &ops, rank, world, hooks);
    pd_wire_init(&c->wire, -1, PD_CONTROL_PAYLOAD);
    pthread_mutex_init(&c->lock, NULL);
    pd_os_cond_init(&c->change);
    PD_TRY_TO(fail, pd_wire_reserve(&c->wire));
    PD_TRY_TO(fail, enter(c, address, secret, deadline, patient));
    if (tcp) pd_log(PD_LOG_INFO, "control: rank %d reaches the server at %s", rank, c->link.way);
    c->wire.handles = !tcp;
    locate(c);
    PD_TRY_TO(fail, pd_os_thread_start("control", &c->thread, run, c));
    pd_fork_watch_add(&c->watch, c->wire.fd);
    *out = &c->link;
    return PD_OK;
fail:
    pd_wire_fini(&c->wire);
    free_link(&c->link);
    return status;
}
