#include "base/dtype.h"

const uint8_t pd_dtype_sizes[PD_DTYPE_COUNT] = {
#define PD_DTYPE(E, name, ctype, bytes, cat) [PD_##E] = bytes,
#include "base/dtype.def"
#undef PD_DTYPE
};

const uint8_t pd_dtype_categories[PD_DTYPE_COUNT] = {
#define PD_DTYPE(E, name, ctype, bytes, cat) [PD_##E] = cat,
#include "base/dtype.def"
#undef PD_DTYPE
};

#define PD_DTYPE(E, name, ctype, bytes, cat) \
    _Static_assert(sizeof(ctype) == bytes, "dtype.def: wrong size of " #name);
#include "base/dtype.def"
#undef PD_DTYPE

const char *pd_dtype_name(pd_dtype t) {
    static const char *const names[] = {
#define PD_DTYPE(E, name, ctype, bytes, cat) [PD_##E] = #name,
#include "base/dtype.def"
#undef PD_DTYPE
    };
    return t >= 0 && t < PD_DTYPE_COUNT ? names[t] : "none";
}

pd_dtype pd_dtype_promote(pd_dtype a, pd_dtype b) {
    if (a == b) return a;
    pd_category ca = pd_dtype_category(a), cb = pd_dtype_category(b);
    pd_dtype lo = a < b ? a : b, hi = a < b ? b : a; /* rows stand in ascending order within a category */
    if (ca == cb) {
        if (lo == PD_U8) return hi == PD_I8 ? PD_I16 : hi;
        if (lo == PD_F16 && hi == PD_BF16) return PD_F32;
        return hi;
    }
    /* A float with complex: the complex type wide enough for it. */
    if (hi == PD_C64 && lo == PD_F64) return PD_C128;
    return hi;
}
