#include <fcntl.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/control/control_impl.h"

#define WAITERS 4096 /* waits of a rank at a time */

struct pd_waiter { /* a GET or WAIT whose key is not there yet */
    pd_waiter *next;
    pd_conn *who;
    uint32_t id;
    int64_t deadline;
    pd_store_call call;
    char key[];
};

static void reply(pd_conn *c, uint32_t id, pd_status status, pd_store_reply *r) {
    pd_control_reply head = {.amount = r->amount, .status = (int32_t)status};
    const char *text = status ? pd_error_get()->text : "";
    if (status) pd_control_send(c, PD_CONTROL_REPLY, id, &head, sizeof head, text, strlen(text), -1);
    else pd_control_send(c, PD_CONTROL_REPLY, id, &head, sizeof head, r->data, r->bytes, c->tcp ? -1 : (int)r->handle);
    pd_free(r->data);
    if (r->handle != PD_NO_HANDLE) close((int)r->handle);
}

static intptr_t dup_fd(intptr_t fd) { return fcntl((int)fd, F_DUPFD_CLOEXEC, 0); }
static void drop_fd(intptr_t fd) { close((int)fd); }

static void drop_waiter(pd_waiter **at) {
    pd_waiter *w = *at;
    *at = w->next;
    w->who->waiters--;
    pd_free(w);
}

/* Answers the waits for this key; with key NULL those whose time is over. */
static void serve_waiters(pd_control_server *s, const char *key, size_t key_bytes, int64_t now) {
    for (pd_waiter **at = &s->waiters; *at;) {
        pd_waiter *w = *at;
        pd_store_reply r = {.handle = PD_NO_HANDLE};
        bool ready = false;
        pd_status status = PD_OK;
        if (!key && w->deadline <= now) {
            status = pd_fail(PD_E_TIMEOUT, "store: waited %.1f s for key '%.*s' (expected a rank to set it)",
                             (double)w->call.timeout_ns * 1e-9, (int)w->call.key_bytes, w->key);
        } else if (key && w->call.key_bytes == key_bytes && !memcmp(w->key, key, key_bytes)) {
            status = pd_kv_run(&s->kv, &w->call, &r, &ready);
        }
        if (ready || status) {
            reply(w->who, w->id, status, &r);
            drop_waiter(at);
        } else {
            at = &w->next;
        }
    }
}

static pd_status wait_for(pd_control_server *s, pd_conn *c, const pd_store_call *call, uint32_t id, int64_t now) {
    pd_waiter *w;
    if (call->timeout_ns <= 0)
        return pd_fail(PD_E_TIMEOUT, "store: key '%.*s' is not set (expected a rank to set it first)",
                       (int)call->key_bytes, call->key);
    if (c->waiters >= WAITERS)
        return pd_fail(PD_E_RUNTIME, "store: a rank has too many waits at once (expected at most %d)", WAITERS);
    PD_TRY(pd_malloc(sizeof *w + call->key_bytes, "store", &w));
    *w = (pd_waiter){.next = s->waiters, .who = c, .id = id, .call = *call};
    w->deadline = call->timeout_ns > INT64_MAX - now ? INT64_MAX : now + call->timeout_ns;
    memcpy(w->key, call->key, call->key_bytes);
    w->call.key = w->key;
    w->call.data = NULL;
    w->call.bytes = 0;
    w->call.handle = PD_NO_HANDLE;
    s->waiters = w;
    c->waiters++;
    return PD_OK;
}

const char *pd_control_store_call(pd_control_server *s, pd_conn *c, int64_t now) {
    pd_control_call head;
    pd_wire *w = &c->wire;
    if (w->head.bytes < sizeof head) return "it sent a store call that is too short";
    memcpy(&head, w->body, sizeof head);
    if (head.verb >= PD_STORE_VERBS || !head.key_bytes || head.key_bytes > PD_STORE_KEY ||
        head.bytes > PD_STORE_VALUE || w->head.bytes != sizeof head + head.key_bytes + head.bytes)
        return "it sent a store call with wrong lengths";
    pd_store_call call = {.verb = (pd_store_verb)head.verb, .key = w->body + sizeof head, .key_bytes = head.key_bytes,
                          .bytes = head.bytes, .amount = head.amount, .timeout_ns = head.timeout_ns,
                          .handle = w->handle >= 0 ? w->handle : PD_NO_HANDLE};
    call.data = call.key + head.key_bytes;
    pd_store_reply r = {.handle = PD_NO_HANDLE};
    bool ready = true;
    pd_status status = pd_kv_run(&s->kv, &call, &r, &ready);
    if (!status && !ready) {
        status = wait_for(s, c, &call, w->head.id, now);
        if (!status) return NULL;
    }
    reply(c, w->head.id, status, &r);
    if (!status && (call.verb == PD_STORE_SET || call.verb == PD_STORE_ADD))
        serve_waiters(s, call.key, call.key_bytes, now);
    return NULL;
}

void pd_control_store_init(pd_control_server *s) { pd_kv_init(&s->kv, dup_fd, drop_fd); }

void pd_control_store_forget(pd_control_server *s, const pd_conn *c) {
    for (pd_waiter **w = &s->waiters; *w;)
        if (!c || (*w)->who == c) drop_waiter(w);
        else w = &(*w)->next;
}

void pd_control_store_timeouts(pd_control_server *s, int64_t now) { serve_waiters(s, NULL, 0, now); }

int64_t pd_control_store_deadline(const pd_control_server *s) {
    int64_t first = INT64_MAX;
    for (const pd_waiter *w = s->waiters; w; w = w->next) first = pd_earlier(first, w->deadline);
    return first;
}
