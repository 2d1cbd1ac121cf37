/* The inside of a program: record.c (how it is made), instr.c (the kinds of instructions), program.c (when and how it
   runs), rehearse.c (whether it does what the call did). */
#ifndef PD_AUTOGRAD_PROGRAM_IMPL_H
#define PD_AUTOGRAD_PROGRAM_IMPL_H

#include "autograd/autocast.h"
#include "autograd/program.h"

/* The modes of a thread. */
typedef struct pd_modes {
    bool grad, inference;
    pd_autocast_state autocast;
    pd_dtype floating;       /* pd_default_dtype: the process's */
    const pd_device *device; /* the current one */
} modes;
modes pd_modes_now(void);
void pd_modes_set(const modes *m); /* all but floating and device, which the recorder does not let change */
bool pd_modes_equal(const modes *a, const modes *b);

/* Slots inside host calls are negative. */
enum { PD_SET_BY_NOBODY, PD_SET_BEFORE, PD_SET_BY_INSTR }; /* pd_program.owned */
typedef struct pd_instr {
    const pd_instr_kind *kind;
    void *attrs;     /* [owned] */
    size_t bytes;
    int32_t *slots;  /* [owned] nin, nout; of a host call also nout slots of its body, where the same results lie */
    int nin, nout;
    int modes;       /* index */
    int body;        /* of a host call: how many instructions follow that it did inside */
    int drop, ndrop; /* slots that nobody needs after it: drops[drop ...] */
    bool host_call, inside; /* inside: it belongs to the body of a host call */
} instr;

/* What a tensor looks like from outside. */
typedef struct pd_look {
    const pd_device *device;
    int8_t dtype, ndim;
    bool requires_grad, made, grad; /* it has a grad_fn; it has a .grad */
    int64_t size[PD_MAX_DIMS], stride[PD_MAX_DIMS];
} look;

typedef struct pd_fixed {
    pd_tensor *t; /* [strong] */
    int32_t slot;
    bool constant; /* the program has made it: nobody else knows it */
    look look;
} fixed;

struct pd_program {
    atomic_int_fast64_t refs;
    instr *instrs;
    size_t count, cap;
    modes *modes; /* [0]: those at the begin and the end */
    size_t nmodes, cap_modes;
    int32_t *drops;
    size_t ndrops, cap_drops;
    fixed *fixed;        /* used outside of host calls */
    size_t nfixed, cap_fixed;
    fixed *body_fixed;   /* used inside of them only */
    size_t nbody_fixed, cap_body_fixed;
    struct pd_input { look look; bool written; } *inputs; /* written: its memory */
    int32_t *outputs;
    int ninputs, noutputs, size;
    int32_t nslots, nbody; /* slots, with slot 0; those inside host calls */
    int most;              /* the largest nin + nout of an instruction */
    bool host;
    pd_storage **written;  /* [strong] memory of fixed tensors that the step has written, or may have given away */
    size_t nwritten, cap_written;
    uint8_t *owned;        /* by slot: who sets it */
    struct pd_effect { pd_storage *s; pd_tensor *bytes; } *effects; /* [strong] */
    size_t neffects, cap_effects;
};

/* Whether the memory is a fixed tensor's. */
bool pd_is_fixed(const pd_program *p, const pd_storage *s);
/* Runs the instructions. rehearsal: bodies in the place of host calls. */
pd_status pd_program_execute(const pd_program *p, pd_tensor *const *in, pd_tensor **out, bool rehearsal);

/* ---- instr.c */

extern const pd_instr_kind pd_instr_op, pd_instr_op_into, pd_instr_backward, pd_instr_alias, pd_instr_grad,
    pd_instr_no_grad, pd_instr_set_grad, pd_instr_requires_grad, pd_instr_autocast_clear, pd_instr_constant,
    pd_instr_empty, pd_instr_forgotten, pd_instr_put;

const char *pd_instr_name(const instr *i); /* of an op: the op's */
void pd_instr_fini(instr *i);

/* t: [strong] a copy that nobody else has. of: only compared, the memory of the tensor that was copied. lent: [strong]
   that tensor, if its memory is somebody else's, such as an array's; else NULL. */
typedef struct pd_constant { pd_tensor *t, *lent; const pd_storage *of; } constant;

/* ---- rehearse.c */

/* *same: whether two tensors have one dtype, shape, order in memory, device and bits. */
pd_status pd_bits_equal(pd_tensor *a, pd_tensor *b, bool *same);
/* [new] the bytes of a storage, and back. */
pd_status pd_storage_copy(pd_storage *s, pd_tensor **out);
pd_status pd_storage_put(pd_storage *s, pd_tensor *bytes);

/* ---- record.c */

/* The recording's tensors that others may write after the step, such as a .grad. */
void pd_record_given_away(pd_tensor *const *t, int n);
void pd_look_at(const pd_tensor *t, look *l);
bool pd_looks_like(const pd_tensor *t, const look *l);

#endif
