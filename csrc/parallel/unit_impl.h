/* What unit.c and gather.c share. */
#ifndef PD_PARALLEL_UNIT_IMPL_H
#define PD_PARALLEL_UNIT_IMPL_H

#include "parallel/unit.h"

#define PD_UNIT_OP "fully_shard"
#define PD_UNIT_SMALL (64 << 10) /* bytes of a parameter that shares a message with others */

static inline pd_dtype pd_unit_whole_type(const pd_unit_param *p) {
    const pd_dtype own = (pd_dtype)p->shard->dtype;
    return p->unit->low == PD_NO_DTYPE || !pd_dtype_is_float(own) ? own : p->unit->low;
}
static inline bool pd_unit_is_low(const pd_unit_param *p) {
    return pd_unit_whole_type(p) != (pd_dtype)p->shard->dtype;
}
/* Of the whole. */
static inline size_t pd_unit_bytes(const pd_unit_param *p) {
    return (size_t)p->piece->numel * pd_dtype_size(pd_unit_whole_type(p));
}
/* Sets where each whole lies among all wholes. Returns the bytes of all. */
size_t pd_unit_lay_out(pd_unit *u);
/* t becomes a tensor of this geometry in the storage s. */
void pd_unit_point(pd_tensor *t, pd_storage *s, pd_dtype dtype, int64_t offset, const int64_t *stride);
/* [new] a plain tensor with the sizes of the shard, of this dtype, in the storage s. */
pd_status pd_unit_part_in(const pd_unit_param *p, pd_storage *s, pd_dtype dtype, int64_t offset, const int64_t *stride,
                          pd_tensor **out);

#endif
