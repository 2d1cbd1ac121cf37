/* A tensor may be this rank's part of a tensor that is spread over ranks (DTensor in Python). Its sizes and memory are
   those of the part, so kernels and optimizers work on it as on any tensor. Its spread says what it is a part of. Parts
   belong together if they have the same spread. The host describes them; it makes one object, which contains the
   spread, for equal descriptions. */
#ifndef PD_TENSOR_SPREAD_H
#define PD_TENSOR_SPREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct pd_spread {
    atomic_int_fast64_t users;           /* tensors, plans and spreads */
    struct pd_spread *gradient;          /* [strong] that of gradients; NULL: this one */
    bool combined; /* the whole is the parts' sum, mean, maximum, ...; else they lie side by side, or are all the same,
                      and an elementwise op on them is one on the whole */
    void (*unused)(struct pd_spread *s); /* there are none any more; called by any thread */
} pd_spread;

/* For another user, who has it from a user. The host alone adds the first one. */
static inline void pd_spread_retain(pd_spread *s) { atomic_fetch_add_explicit(&s->users, 1, memory_order_relaxed); }
static inline void pd_spread_release(pd_spread *s) { /* NULL is fine */
    if (s && atomic_fetch_sub_explicit(&s->users, 1, memory_order_acq_rel) == 1) s->unused(s);
}

static inline pd_spread *pd_spread_of_gradient(pd_spread *s) { return s && s->gradient ? s->gradient : s; }

#endif
