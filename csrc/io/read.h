/* Boxes of tensors that lie in a file, read into memory of any strides. Only the blocks (parts.h) that a box touches
   are read, and those with a checksum are checked before a byte of them is believed. Threads take blocks in turn. */
#ifndef PD_IO_READ_H
#define PD_IO_READ_H

#include "io/parts.h"

#define PD_BOX_DIMS 16

/* Row-major in the file. Sizes, positions and strides count elements. */
typedef struct pd_box {
    int64_t begin, bytes; /* where the whole tensor lies in the file */
    int64_t each;         /* bytes of an element: 1, 2, 4, 8 or 16 */
    int ndim;
    int64_t shape[PD_BOX_DIMS]; /* of the whole tensor */
    int64_t lo[PD_BOX_DIMS], size[PD_BOX_DIMS];
    int64_t stride[PD_BOX_DIMS]; /* of `to`; not negative */
    const uint32_t *crc;  /* of the tensor's blocks, or NULL: not checked */
    char *to;
} pd_box;

/* The first block, by box and block, that is not what it was. */
typedef struct pd_damage {
    bool found;
    bool cut; /* the file ends before the block does; `got` says nothing */
    bool checked; /* `expected` says something */
    int64_t box, block;
    uint32_t expected, got;
} pd_damage;

/* PD_E_VALUE: the numbers of box i contradict each other. */
pd_status pd_box_check(const char *op, const pd_box *box, int64_t i);
/* Reads boxes that pd_box_check has passed. The host's lock has been given up. PD_E_DATA: *damage says which block;
   PD_E_OS with errno. After a failure the destinations hold anything. direct: past the page cache if the file system
   can. */
pd_status pd_read_boxes(const char *op, const char *path, const pd_box *box, int64_t count, int threads, bool direct,
                        pd_damage *damage);

#endif
