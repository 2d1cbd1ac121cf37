/* Rows that go to places and come back. */
#include <string.h>

#include "kernels/cpu/lib/real.h"

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/route.inc"
#include "kernels/cpu/lib/each_type.h"

PD_CPU_FUNCTION(bool, route, const char *op, const pd_route *c, int64_t *from, bool *once, pd_bad_index *bad) {
    *once = true;
    for (int64_t r = 0; r < c->rows && from; r++) from[r] = -1;
    for (int64_t at = 0; at < c->tokens * c->each; at++) {
        const int64_t place = c->place[at];
        if (place < -1 || place >= c->rows) {
            *bad = (pd_bad_index){op, PD_BAD_ROW, {place, c->rows, c->rows}};
            return true;
        }
        if (place < 0 || !from) continue;
        *once &= from[place] < 0;
        from[place] = at;
    }
    return false;
}
PD_CPU_FUNCTION(void, dispatch_rows, pd_dtype t, const pd_route *c, const int64_t *from, bool once, const void *x,
                const void *w, void *out) {
    if (t == PD_F64) dispatch_f64(t, c, from, once, x, w, out);
    else dispatch_f32(t, c, from, once, x, w, out);
}
PD_CPU_FUNCTION(void, combine_rows, pd_dtype t, const pd_route *c, const void *x, const void *w, void *out) {
    if (t == PD_F64) combine_f64(t, c, x, w, out);
    else combine_f32(t, c, x, w, out);
}
PD_CPU_FUNCTION(void, row_products, pd_dtype t, const pd_route *c, const void *x, const void *y, void *out) {
    if (t == PD_F64) products_f64(t, c, x, y, out);
    else products_f32(t, c, x, y, out);
}
