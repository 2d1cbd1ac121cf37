/* Environment variables, each a row of flags.def, read once at first use. */
#ifndef PD_BASE_FLAGS_H
#define PD_BASE_FLAGS_H

#include <stddef.h>

typedef const char *pd_flag_str;
typedef int pd_flag_int;
typedef double pd_flag_num;

#pragma push_macro("NAN") /* <math.h> has one, a row of ours too */
#undef NAN
typedef struct pd_flags {
#define PD_FLAG(name, type, def, help) pd_flag_##type name;
#include "base/flags.def"
#undef PD_FLAG
} pd_flags;
#pragma pop_macro("NAN")

const pd_flags *pd_flags_get(void); /* [borrowed from the process] */
/* PYDIST_IFACE, or what PyTorch's scripts set instead; *variable: which of them. "": none is set. */
const char *pd_flags_iface(const char **variable);
const char *pd_flags_rank(void);    /* RANK, as launchers set it, for messages; "0" without */

/* Row i as text, for pydist.info; false past the last. `value` holds at least `size` bytes. */
int pd_flags_describe(size_t i, const char **name, const char **help, char *value, size_t size);

#endif
