/* The rows of a table: how they begin, and one step of one of them. */
#include <math.h>

#include "base/rng.h"
#include "ps/table_impl.h"

void pd_row_start(const pd_table *t, int64_t id, float *out) {
    const pd_table_options *o = &t->head->o;
    if (o->start == PD_TABLE_ZEROS) {
        memset(out, 0, (size_t)t->dim * sizeof *out);
        return;
    }
    for (int i = 0; i < t->dim; i += 4) {
        const pd_philox p = pd_philox_at(o->seed, 0, (uint64_t)id, (uint32_t)(i / 4));
        float u[4];
        for (int j = 0; j < 4; j++) u[j] = pd_u32_to_f32(p.v[j]);
        if (o->start == PD_TABLE_NORMAL) {
            for (int j = 0; j < 4; j += 2) { /* Box and Muller */
                const float r = sqrtf(-2.0f * logf(1.0f - u[j])), a = 6.2831853f * u[j + 1];
                u[j] = r * cosf(a), u[j + 1] = r * sinf(a);
            }
        } else {
            for (int j = 0; j < 4; j++) u[j] = 2.0f * u[j] - 1.0f;
        }
        for (int j = 0; j < 4 && i + j < t->dim; j++) out[i + j] = (float)o->scale * u[j];
    }
}

void pd_row_make(pd_table *t, int64_t id) {
    if (is_made(t, id)) return;
    pd_row_start(t, id, row_at(t, id));
    atomic_fetch_or(&bits_of(t)[id >> 6], (uint64_t)1 << (id & 63));
}

row_step pd_row_step_of(const pd_table *t, float scale, double lr, uint64_t number) {
    const pd_table_options *o = &t->head->o;
    row_step c = {.scale = scale, .rate = (float)lr, .by = (float)lr, .root = 1};
    if (o->rule == PD_TABLE_ADAM) {
        c.by = (float)(lr / (1.0 - pow(o->numbers[0], (double)number)));
        c.root = (float)sqrt(1.0 - pow(o->numbers[1], (double)number));
    }
    return c;
}

void pd_row_run(const pd_table *t, int64_t id, const float *g, const row_step *c) {
    const pd_table_options *o = &t->head->o;
    float *restrict p = row_at(t, id), *restrict s = states_at(t, id);
    const int n = t->dim;
    const float rate = c->rate, scale = c->scale;
    if (o->rule == PD_TABLE_SGD) {
        const float decay = (float)o->numbers[0];
        for (int i = 0; i < n; i++) p[i] -= rate * (scale * g[i] + decay * p[i]);
    } else if (o->rule == PD_TABLE_ADAGRAD) {
        const float eps = (float)o->numbers[0], decay = (float)o->numbers[1];
        float sum = 0;
        for (int i = 0; i < n; i++) {
            const float d = scale * g[i] + decay * p[i];
            sum += d * d;
        }
        *s += sum / (float)n;
        const float by = rate / (sqrtf(*s) + eps);
        for (int i = 0; i < n; i++) p[i] -= by * (scale * g[i] + decay * p[i]);
    } else if (o->rule == PD_TABLE_ADAM) {
        const float b1 = (float)o->numbers[0], b2 = (float)o->numbers[1], eps = (float)o->numbers[2];
        const float decay = (float)o->numbers[3], root = c->root, by = c->by;
        float *restrict m = s, *restrict v = s + n;
        for (int i = 0; i < n; i++) {
            const float d = scale * g[i] + decay * p[i];
            m[i] += (1.0f - b1) * (d - m[i]);
            v[i] += (1.0f - b2) * (d * d - v[i]);
            p[i] -= by * m[i] / (sqrtf(v[i]) / root + eps);
        }
    } else {
        const float l1 = (float)o->numbers[0], beta = (float)o->numbers[1], decay = (float)o->numbers[2];
        float *restrict z = s, *restrict v = s + n;
        for (int i = 0; i < n; i++) {
            const float d = scale * g[i], after = v[i] + d * d, root = sqrtf(after);
            z[i] += d - (root - sqrtf(v[i])) / rate * p[i];
            v[i] = after;
            const float over = fabsf(z[i]) - l1;
            p[i] = over > 0 ? (z[i] < 0 ? over : -over) / ((beta + root) / rate + decay) : 0;
        }
    }
}

/* Copies a row and its states to `undo`, or back. */
static void keep_row(const pd_table *t, int64_t id, char *undo, bool back) {
    const size_t row = (size_t)t->dim * 4, states = (size_t)t->per_row * 4;
    float *p = row_at(t, id), *s = states_at(t, id);
    if (!back) memcpy(undo, &id, 8), memcpy(undo + 8, p, row), memcpy(undo + 8 + row, s, states);
    else memcpy(p, undo + 8, row), memcpy(s, undo + 8 + row, states);
}

void pd_row_update(pd_table *t, position *p, char *undo, uint64_t at, int64_t id, const float *g, const row_step *c) {
    pd_row_make(t, id);
    keep_row(t, id, undo, false);
    pd_ps_say(&p->at, at | 1);
    pd_row_run(t, id, g, c);
    pd_ps_say(&p->at, at + 2);
}

void pd_row_mend(const pd_table *t, position *p, char *undo) {
    const uint64_t at = get(&p->at);
    int64_t id;
    if (!(at & 1)) return;
    memcpy(&id, undo, 8);
    keep_row(t, id, undo, true);
    pd_ps_say(&p->at, at & ~(uint64_t)1);
}
