/* Environment variables, each a row of flags.def, read once at first use. */
#ifndef PD_BASE_FLAGS_H
#define PD_BASE_FLAGS_H

#include <stddef.h>

typedef const char *pd_flag_str;
typedef int pd_flag_int;
typedef double pd_flag_num;

#pragma push_macro("NAN") /* <math.h> defines NAN, and flags.def has a row NAN */
#undef NAN
typedef struct pd_flags {
#define PD_FLAG(name, type, def, help) pd_flag_##type name;
#include "base/flags.def"
#undef PD_FLAG
} pd_flags;
#pragma pop_macro("NAN")

const pd_flags *pd_flags_get(void); /* [borrowed from the process] */
/* The value of PYDIST_IFACE, or of the variable that scripts for PyTorch set instead; *variable: the name of the one
   that is set. "" if none is. */
const char *pd_flags_iface(const char **variable);
const char *pd_flags_rank(void);    /* the variable RANK, which launchers set, for messages; "0" if it is not set */

/* Row i as text, for pydist.info. `value` has room for `size` bytes. Returns false after the last row. */
int pd_flags_describe(size_t i, const char **name, const char **help, char *value, size_t size);

#endif
