/* Messages of tf.train.Example to columns: of each row, the values of the features that the caller names. Reads the
   wire format of Protocol Buffers itself, and trusts no length in it. */
#ifndef PD_DATA_EXAMPLE_H
#define PD_DATA_EXAMPLE_H

#include "base/status.h"

/* As fields of the message Feature are numbered. Values are spans of `data` (two int64), floats, int64. */
typedef enum pd_feature_kind { PD_BYTES = 1, PD_FLOATS = 2, PD_INTS = 3 } pd_feature_kind;

typedef struct pd_feature {
    const char *key;
    size_t key_bytes;
    pd_feature_kind kind;
    int64_t size;           /* values in a row */
    bool required, varying; /* its absence is an error; rows may have fewer values, and zeros follow */
    void *values;           /* [rows, size]; NULL: only counts */
    int64_t *counts;        /* [rows]: values that a row has, -1: the feature is absent and `values` is as before */
} pd_feature;

/* Reads `rows` messages: row i is data[spans[2 i]] up to data[spans[2 i + 1]], within `bytes`. Fails with PD_E_DATA,
   naming row and feature, if one is no Example or has other values than the features say. Gives up the host's lock for
   long work. */
pd_status pd_example_parse(const char *op, const char *data, int64_t bytes, const int64_t *spans, int64_t rows,
                           pd_feature *features, int count);

#endif
