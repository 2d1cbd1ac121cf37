/* What a parameter server does with a sum of gradients: an optimizer's step by the kernels of optim, or less. */
#ifndef PD_PS_RULE_H
#define PD_PS_RULE_H

#include "kernels/kernels.h"

#define PD_PS_NUMBERS 8
#define PD_PS_STATES 4 /* the float32 copy of a 16-bit value, m, v, w */

typedef enum pd_ps_kind {
    PD_PS_ASSIGN, /* p = g */
    PD_PS_ADD,    /* p += g */
    PD_PS_SGD,
    PD_PS_ADAM,
    PD_PS_ADADELTA,
    PD_PS_RMSPROP,
    PD_PS_ADAGRAD,
    PD_PS_MOMENTS, /* NAdam, RAdam */
    PD_PS_ADAMAX,
    PD_PS_LION,
    PD_PS_FTRL,
    PD_PS_KINDS
} pd_ps_kind;

/* numbers and flags: in the order of rule.c's table, which is that of the kernels' structs (kernels.h). */
typedef struct pd_ps_rule {
    int32_t kind;
    uint32_t flags;
    double numbers[PD_PS_NUMBERS];
    double clip; /* 0: none; else the sum's elements lie within [-clip, clip] */
    bool wide;   /* a 16-bit value has a float32 copy, which is stepped */
} pd_ps_rule;

/* Fails in the name of `op` unless the kind exists and fits the dtype. *states: which states it needs, a bit for
   each. */
pd_status pd_ps_rule_check(const char *op, const pd_ps_rule *r, pd_dtype dtype, unsigned *states);
const char *pd_ps_rule_name(int kind);
int pd_ps_rule_find(const char *name); /* its kind; -1: there is none */
int pd_ps_rule_counts(int kind, int *flags); /* how many numbers; *flags: how many flags */

/* Numbers of a step that depend on all steps before it; kept by who computes them. Zeros at first. */
typedef struct pd_ps_past { uint64_t step; double mu_product; } pd_ps_past;

/* One step, number `step` (from 1), on n elements at p, with states, low, of dtype t. g is read. */
void pd_ps_rule_run(const pd_ps_rule *r, pd_dtype t, double lr, uint64_t step, pd_ps_past *past,
                    const pd_segment_step *s);

#endif
