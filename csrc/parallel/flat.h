/* Flat memory: the buckets of a layout, as memory that collectives use in place, and tensors in it.

   On a CPU a bucket is a segment of the group's symmetric memory. On a GPU it is memory like a tensor's, or, with
   PYDIST_REGISTER, a part of one block that is registered with NCCL. It starts as zeros and lives as long as a tensor
   in it. The last bucket may have a tail: elements of its dtype after those of its pieces.

   Data-parallel training keeps gradients here; shards and windows of parameters may follow. */
#ifndef PD_PARALLEL_FLAT_H
#define PD_PARALLEL_FLAT_H

#include "comm/group/group.h"
#include "parallel/layout.h"
#include "tensor/tensor.h"

typedef struct pd_flat_bucket {
    char *data;
    pd_storage *storage; /* shared by the tensors in it */
    pd_segment *segment; /* NULL on a GPU, where the storage owns the memory */
} pd_flat_bucket;

typedef struct pd_flat {
    const char *who;           /* "DistributedDataParallel": how errors begin */
    const pd_layout *layout;   /* [borrowed] with buckets */
    const pd_device *device;
    pd_flat_bucket *buckets;   /* by number */
    pd_group_memory *registered; /* the block that contains all buckets, or NULL */
    size_t used;               /* bytes of it that are in use */
    int64_t tail;              /* elements */
} pd_flat;

/* All ranks call it. The layout and `who` must outlive it. */
pd_status pd_flat_init(pd_flat *f, const char *who, const pd_layout *l, int64_t tail, pd_group *group,
                       const pd_device *device);
void pd_flat_fini(pd_flat *f); /* also after init has failed, and for zeros */

static inline bool pd_flat_on_host(const pd_flat *f) { return f->device->kind == PD_DEVICE_CPU; }
/* The address of the tail. */
static inline char *pd_flat_tail(const pd_flat *f) {
    int last = f->layout->nbuckets - 1;
    const pd_bucket_span *span = &f->layout->buckets[last];
    return f->buckets[last].data + (size_t)span->numel * pd_dtype_size(span->dtype);
}

/* [new] a tensor over a piece's memory, with the sizes and strides of `like`, which is dense and of the piece's
   dtype. */
pd_status pd_flat_tensor(const pd_flat *f, const pd_piece *p, const pd_tensor *like, pd_tensor **out);

/* A user may have given such a tensor other memory (x.data = ..., resize_). Then this function copies its values into
   the piece's memory and gives it that memory back. PD_E_SHAPE, which names the piece: its shape differs from
   `like`. */
pd_status pd_flat_bring_back(const pd_flat *f, const pd_piece *p, const pd_tensor *like, pd_tensor *t);
static inline pd_status pd_flat_mend(const pd_flat *f, const pd_piece *p, const pd_tensor *like, pd_tensor *t) {
    if (t->storage == f->buckets[p->bucket].storage && t->offset == p->offset && t->numel == p->numel) return PD_OK;
    return pd_flat_bring_back(f, p, like, t);
}

/* Fills n elements at `data`, which is on the device, with `value`. */
pd_status pd_flat_fill(const pd_flat *f, void *data, int64_t n, pd_dtype t, double value);
pd_status pd_flat_clear(const pd_flat *f, void *data, int64_t n, pd_dtype t);
/* Clears the gaps that alignment leaves between the pieces of a bucket. */
pd_status pd_flat_clear_gaps(const pd_flat *f, int b);

#endif
