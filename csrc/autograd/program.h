/* Recorded programs: what one call of a host function did with tensors, as instructions that C does again without the
   host.

   Recording. A thread records between pd_recorder_begin and pd_recorder_end; the function runs as ever meanwhile. Each
   op, backward and other call that makes, reads or writes tensors appends one instruction when it ends, and drops those
   that it has appended inside, since it will do that work again. A call that cannot be done again refuses the
   recording. One thread of the process records at a time. While nobody records, ops pay nothing: they learn of it by
   the profiler's check (base/profile.h).

   Slots. An instruction names tensors by slots: 0 is no tensor, then come the inputs, then, as they are met, results of
   instructions and fixed tensors. A fixed tensor was there before the recording (a parameter, a state); the program
   keeps it. The recorder knows a tensor by its `mark`, so it keeps no tensor that the function has dropped.

   What is recorded in vain. A tensor that was made in the call, but by no instruction, looks like a fixed one. So a
   function is recorded twice: another call makes another tensor, and the programs differ (pd_program_same).

   Host calls. A part of the function may stay with the host: pd_record_host_begin and _end stand around it. A run of
   the program calls the host there. What the host did inside is recorded, too, as the call's body, for rehearsals.

   Rehearsal. pd_rehearse_begin keeps what a call will write, as it is before the call. After the call,
   pd_rehearse_end runs the program recorded in that very call on what was kept, with bodies in the place of host calls,
   and compares all bits with what the call has left. The call's own results stay in every case. */
#ifndef PD_AUTOGRAD_PROGRAM_H
#define PD_AUTOGRAD_PROGRAM_H

#include "autograd/engine.h"
#include "base/profile.h"

typedef struct pd_program pd_program;

typedef struct pd_instr_kind {
    const char *name;
    /* in and out: NULL where there was no tensor. Results are [new]. */
    pd_status (*run)(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout);
    bool (*same)(const void *a, const void *b); /* of two attrs with equally many bytes; NULL: compares the bytes */
    void (*drop)(void *attrs);                  /* NULL: they own nothing */
    bool host;                                  /* run needs the host's lock */
} pd_instr_kind;

/* ---- recording --------------------------------------------------------------------------------------------------- */

extern _Thread_local struct pd_recorder *pd_recorder_here; /* NULL: this thread does not record */
static inline bool pd_is_recording(void) { return __builtin_expect(pd_recorder_here != NULL, 0); }

/* PD_E_RUNTIME: a thread records already. The inputs are distinct. */
pd_status pd_recorder_begin(pd_tensor *const *inputs, int ninputs);
/* Ends the recording of this thread. *out [new]: the program, which returns these outputs; NULL if the recording was
   refused: then *why says who did that ([borrowed from this thread]). */
pd_status pd_recorder_end(pd_tensor *const *outputs, int noutputs, pd_program **out, const char **why);
bool pd_recorder_is_busy(void); /* whether a thread records */
void pd_recorder_abandon(void); /* ends it without a program */
/* The slot of a tensor that was made in this recording; 0: it was not. */
int pd_recorder_slot(const pd_tensor *t);

/* All of these do nothing if this thread does not record. mark: pd_timespan_mark at the begin of the call. attrs are
   copied; what they own belongs to the program from now on, in every case. */
void pd_record(uint32_t mark, const pd_instr_kind *kind, const void *attrs, size_t bytes, pd_tensor *const *in, int nin,
               pd_tensor *const *out, int nout);
void pd_record_op(uint32_t mark, const pd_def *def, const void *attrs, pd_tensor *const *in, int nin,
                  pd_tensor *const *out, int nout);
void pd_record_op_into(uint32_t mark, const pd_def *def, const void *attrs, pd_tensor *const *in, int nin,
                       pd_tensor *into);
void pd_record_backward(uint32_t mark, const pd_backward *b);
void pd_record_alias(pd_tensor *of, bool own_version, pd_tensor *out);
void pd_record_grad(pd_tensor *of, pd_tensor *grad);     /* .grad was read; NULL: there is none */
void pd_record_set_grad(pd_tensor *of, pd_tensor *grad); /* NULL: it was deleted */
void pd_record_requires_grad(pd_tensor *of, bool want);
void pd_record_autocast_clear(void);
/* t is new. Each run has a tensor with the values that t has now. defined: t has values, else any will do. */
void pd_record_constant(pd_tensor *t, bool defined);
/* The recording gives no program, because of what the caller does. */
void pd_record_refuse(const char *why, ...) __attribute__((format(printf, 1, 2), cold));
/* The host reads values of a tensor. That is a refusal, except inside a host call. */
void pd_record_read(const char *op);

/* A call of the host that each run repeats: begin, then the call, then end. Only the outermost one counts. */
void pd_record_host_begin(pd_tensor *const *in, int nin);
/* The host makes a call, such as a collective or a draw of its own, that a rehearsal must not repeat. Inside
   a host call, what the host call writes and returns is kept in the place of its body; outside this is a refusal, for
   the reason given. */
void pd_record_outside(const char *why, ...) __attribute__((format(printf, 1, 2), cold));
/* kind->run calls the host again. */
void pd_record_host_end(const pd_instr_kind *kind, const void *attrs, size_t bytes, pd_tensor *const *out, int nout);

/* ---- programs ---------------------------------------------------------------------------------------------------- */

void pd_program_retain(pd_program *p);
void pd_program_release(pd_program *p); /* NULL is fine */
/* For a program that is the same as b, which was recorded later: arrays that both have read at one address will be read
   there again. */
void pd_program_settle(pd_program *p, const pd_program *b);
void pd_program_forget_bodies(pd_program *p); /* frees what only rehearsals need */
/* NULL: they do the same on the same fixed tensors. Else what differs, [borrowed from this thread]. */
const char *pd_program_same(const pd_program *a, const pd_program *b);
int pd_program_size(const pd_program *p); /* how many instructions, without those inside host calls */
int pd_program_outputs(const pd_program *p);
bool pd_program_needs_host(const pd_program *p);
/* Calls visit with the attrs of all instructions of the kind, until it returns something else than 0. */
void pd_program_visit(const pd_program *p, const pd_instr_kind *kind, int (*visit)(void *attrs, void *ctx), void *ctx);
/* [borrowed from p] the k-th fixed tensor; NULL: there are fewer. The first *own are those that a run uses, the others
   belong to host calls. */
pd_tensor *pd_program_fixed(const pd_program *p, int k, int *own);
/* Notes what the fixed tensors look like, and which of them have a gradient: the state in which p may run again. Call
   it before the second recording, whose begin is that state. */
void pd_program_look(pd_program *p);
/* Whether p may run on these inputs now: they look like those that were recorded, the modes of the thread are those of
   the recording, and the fixed tensors, unless !with_fixed, look as pd_program_look has found them. */
bool pd_program_fits(const pd_program *p, pd_tensor *const *in, int nin, bool with_fixed);
/* Runs p, which has to fit. out: [new], as many as pd_recorder_end was given. Any thread may call it. */
pd_status pd_program_run(const pd_program *p, pd_tensor *const *in, pd_tensor **out);

/* ---- rehearsals -------------------------------------------------------------------------------------------------- */

/* Memory that other processes have written, in the order of these calls: a rehearsal does not repeat what they did, but
   gives the memory the same bytes. pd_record_effect does nothing if this thread does not record. */
void pd_record_effect(pd_storage *s);
bool pd_is_rehearsing(void); /* in this thread */
pd_status pd_rehearse_effect(pd_storage *s);

typedef struct pd_rehearsal pd_rehearsal;
/* [new] keeps all that p writes, and the gradients of its fixed tensors. */
pd_status pd_rehearse_begin(const pd_program *p, pd_tensor *const *in, pd_rehearsal **out);
/* Whether all that p writes was kept. Else it must not be rehearsed. */
bool pd_rehearsal_covers(const pd_rehearsal *h, const pd_program *p);
/* p: the program recorded since. outputs: what the call returned. *why NULL: all bits are equal; else what differs,
   [borrowed from this thread]. Frees h. */
pd_status pd_rehearse_end(pd_rehearsal *h, const pd_program *p, pd_tensor *const *outputs, const char **why);
void pd_rehearse_drop(pd_rehearsal *h);

#endif
