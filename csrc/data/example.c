#include "data/example.h"

#include <string.h>

#include "base/host.h"

/* ---- the wire format --------------------------------------------------------------------------------------------- */

enum { VARINT = 0, EIGHT = 1, COUNTED = 2, FOUR = 5 }; /* how a field is stored */

typedef struct part {
    const uint8_t *at, *end;
} part;

static bool read_varint(part *p, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && p->at < p->end; shift += 7) {
        uint64_t byte = *p->at++;
        *value |= (byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

typedef struct field {
    uint64_t number, value; /* value: of a VARINT */
    int wire;
    part content; /* of the others */
} field;

/* Reads the next field. False: the message is damaged; `left` before it says whether there is one. */
static bool read_field(part *p, field *f) {
    uint64_t tag, bytes;
    if (!read_varint(p, &tag)) return false;
    f->number = tag >> 3;
    f->wire = (int)(tag & 7);
    switch (f->wire) {
    case VARINT: return read_varint(p, &f->value);
    case COUNTED:
        if (!read_varint(p, &bytes)) return false;
        break;
    case EIGHT: bytes = 8; break;
    case FOUR: bytes = 4; break;
    default: return false;
    }
    if (bytes > (uint64_t)(p->end - p->at)) return false;
    f->content = (part){p->at, p->at + bytes};
    p->at += bytes;
    return true;
}

static inline bool left(const part *p) { return p->at < p->end; }

/* ---- lists of values --------------------------------------------------------------------------------------------- */

typedef struct parser {
    const char *op, *data;
    int64_t row;
    pd_feature *features;
    int count, next; /* next: the feature that comes after the one before, in the order of most messages */
} parser;

static pd_status damaged(const parser *p, const char *where) {
    return pd_fail(PD_E_DATA, "%s: row %lld is damaged, or no tf.train.Example: %s cannot be read", p->op,
                   (long long)p->row, where);
}

/* The feature's name in messages: "%.*s" takes both. */
#define KEY(f) (int)((f)->key_bytes < 200 ? (f)->key_bytes : 200), (f)->key

static void *place(const parser *p, const pd_feature *f, int64_t i, size_t each) {
    return f->values && i < f->size ? (char *)f->values + (size_t)(p->row * f->size + i) * each : NULL;
}

static bool read_ints(const parser *p, const pd_feature *f, field *in, int64_t *n) {
    if (in->wire == VARINT) {
        int64_t *to = place(p, f, (*n)++, sizeof *to);
        if (to) *to = (int64_t)in->value;
        return true;
    }
    if (in->wire != COUNTED) return false;
    for (uint64_t value; left(&in->content); ++*n) {
        int64_t *to = place(p, f, *n, sizeof *to);
        if (!read_varint(&in->content, &value)) return false;
        if (to) *to = (int64_t)value;
    }
    return true;
}

static bool read_floats(const parser *p, const pd_feature *f, const field *in, int64_t *n) {
    int64_t bytes = in->content.end - in->content.at, many = bytes / 4;
    if ((in->wire != COUNTED && in->wire != FOUR) || bytes % 4) return false;
    float *to = place(p, f, *n, sizeof *to);
    int64_t room = to ? f->size - *n : 0;
    if (to) memcpy(to, in->content.at, (size_t)(many < room ? many : room) * sizeof *to);
    *n += many;
    return true;
}

static bool read_bytes(const parser *p, const pd_feature *f, const field *in, int64_t *n) {
    if (in->wire != COUNTED) return false;
    int64_t *to = place(p, f, (*n)++, 2 * sizeof *to);
    if (to) {
        to[0] = (const char *)in->content.at - p->data;
        to[1] = (const char *)in->content.end - p->data;
    }
    return true;
}

/* Reads the values of a list behind the *n that the feature has already. */
static pd_status read_list(const parser *p, const pd_feature *f, part list, int64_t *n) {
    field in;
    while (left(&list)) {
        bool good = read_field(&list, &in);
        if (good && in.number == 1)
            good = f->kind == PD_INTS     ? read_ints(p, f, &in, n)
                   : f->kind == PD_FLOATS ? read_floats(p, f, &in, n)
                                          : read_bytes(p, f, &in, n);
        if (!good)
            return pd_fail(PD_E_DATA, "%s: row %lld: the values of feature '%.*s' are damaged", p->op,
                           (long long)p->row, KEY(f));
    }
    return PD_OK;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static const char *kind_name(uint64_t kind) {
    return kind == PD_BYTES ? "bytes_list" : kind == PD_FLOATS ? "float_list" : "int64_list";
}

static pd_status read_feature(const parser *p, const pd_feature *f, part message) {
    field in;
    uint64_t kind = 0; /* 0: as if the feature were absent */
    int64_t n = 0;
    while (left(&message)) {
        if (!read_field(&message, &in)) return damaged(p, "a feature");
        if (in.number < PD_BYTES || in.number > PD_INTS || in.wire != COUNTED) continue;
        if (in.number != kind) n = 0; /* of several lists the last one counts, of one kind all */
        kind = in.number;
        if (kind == f->kind) PD_TRY(read_list(p, f, in.content, &n));
    }
    if (kind && kind != f->kind)
        return pd_fail(PD_E_DATA, "%s: row %lld: feature '%.*s' is a %s (expected a %s)", p->op, (long long)p->row,
                       KEY(f), kind_name(kind), kind_name(f->kind));
    f->counts[p->row] = kind ? n : -1;
    if (!kind || f->varying || n == f->size) return PD_OK;
    return pd_fail(PD_E_DATA, "%s: row %lld: feature '%.*s' has %lld values (expected %lld)", p->op, (long long)p->row,
                   KEY(f), (long long)n, (long long)f->size);
}

static const pd_feature *find(parser *p, part key) {
    size_t bytes = (size_t)(key.end - key.at);
    for (int i = 0; i < p->count; i++) {
        const pd_feature *f = &p->features[(p->next + i) % p->count];
        if (f->key_bytes != bytes || memcmp(f->key, key.at, bytes) != 0) continue;
        p->next = (int)(f - p->features) + 1;
        return f;
    }
    return NULL;
}

static pd_status read_entry(parser *p, part entry) {
    static const uint8_t none[1];
    field in;
    part key = {none, none}, value = {none, none};
    while (left(&entry)) {
        if (!read_field(&entry, &in)) return damaged(p, "an entry of its features");
        if (in.wire == COUNTED && in.number == 1) key = in.content;
        if (in.wire == COUNTED && in.number == 2) value = in.content;
    }
    const pd_feature *f = find(p, key);
    return f ? read_feature(p, f, value) : PD_OK;
}

static pd_status read_features(parser *p, part message) {
    field in;
    while (left(&message)) {
        if (!read_field(&message, &in)) return damaged(p, "the message Features");
        if (in.number == 1 && in.wire == COUNTED) PD_TRY(read_entry(p, in.content));
    }
    return PD_OK;
}

static void pad(const parser *p, const pd_feature *f) {
    size_t each = f->kind == PD_FLOATS ? sizeof(float) : f->kind == PD_INTS ? sizeof(int64_t) : 2 * sizeof(int64_t);
    int64_t n = f->counts[p->row] > 0 ? f->counts[p->row] : 0;
    void *to = place(p, f, n, each);
    if (to) memset(to, 0, (size_t)(f->size - n) * each);
}

static pd_status read_row(parser *p, part message) {
    field in;
    for (int i = 0; i < p->count; i++) p->features[i].counts[p->row] = -1;
    while (left(&message)) {
        if (!read_field(&message, &in)) return damaged(p, "the message");
        if (in.number == 1 && in.wire == COUNTED) PD_TRY(read_features(p, in.content));
    }
    for (int i = 0; i < p->count; i++) {
        const pd_feature *f = &p->features[i];
        if (f->counts[p->row] < 0 && f->required)
            return pd_fail(PD_E_DATA, "%s: row %lld has no feature '%.*s' (expected one, or a default_value)", p->op,
                           (long long)p->row, KEY(f));
        if (f->varying) pad(p, f);
    }
    return PD_OK;
}

enum { BYTES_PER_NS = 2 }; /* about */

pd_status pd_example_parse(const char *op, const char *data, int64_t bytes, const int64_t *spans, int64_t rows,
                           pd_feature *features, int count) {
    parser p = {.op = op, .data = data, .features = features, .count = count};
    pd_status status = PD_OK;
    void *token = (double)bytes > PD_RELEASE_NS * BYTES_PER_NS ? pd_host_release() : NULL;
    for (int64_t i = 0; !status && i < rows; i++) {
        p.row = i;
        p.next = 0;
        int64_t begin = spans[2 * i], end = spans[2 * i + 1];
        if (begin < 0 || end < begin || end > bytes)
            status = pd_fail(PD_E_DATA, "%s: row %lld is at bytes %lld to %lld of %lld", op, (long long)i,
                             (long long)begin, (long long)end, (long long)bytes);
        PD_THEN(read_row(&p, (part){(const uint8_t *)data + begin, (const uint8_t *)data + end}));
    }
    pd_host_acquire(token);
    return status;
}
