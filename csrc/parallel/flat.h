/* Flat memory: the buckets of a layout as memory that collectives use where it lies, and tensors in it.

   On a CPU a bucket is a segment of the group's symmetric memory. On a GPU it is memory like a tensor's, or with
   PYDIST_REGISTER a part of one piece that NCCL has registered. It begins as zeros and lives as long as a tensor in it.
   The last bucket may have a tail: elements of its dtype behind those of its pieces.

   Gradients lie here in data-parallel training; shards and windows of parameters may. */
#ifndef PD_PARALLEL_FLAT_H
#define PD_PARALLEL_FLAT_H

#include "comm/group/group.h"
#include "parallel/layout.h"
#include "tensor/tensor.h"

typedef struct pd_flat_bucket {
    char *data;
    pd_storage *storage; /* what the tensors in it share */
    pd_segment *segment; /* NULL on a GPU, where the memory is the storage's own */
} pd_flat_bucket;

typedef struct pd_flat {
    const char *who;           /* "DistributedDataParallel": how errors begin */
    const pd_layout *layout;   /* [borrowed] with buckets */
    const pd_device *device;
    pd_flat_bucket *buckets;   /* by number */
    pd_group_memory *registered; /* NULL, or what all buckets lie in */
    size_t used;               /* of it, bytes */
    int64_t tail;              /* elements */
} pd_flat;

/* Collective. The layout and `who` have to outlive it. */
pd_status pd_flat_init(pd_flat *f, const char *who, const pd_layout *l, int64_t tail, pd_group *group,
                       const pd_device *device);
void pd_flat_fini(pd_flat *f); /* also where init failed or was never called (zeros) */

static inline bool pd_flat_on_host(const pd_flat *f) { return f->device->kind == PD_DEVICE_CPU; }
/* Where the tail begins. */
static inline char *pd_flat_tail(const pd_flat *f) {
    int last = f->layout->nbuckets - 1;
    const pd_bucket_span *span = &f->layout->buckets[last];
    return f->buckets[last].data + (size_t)span->numel * pd_dtype_size(span->dtype);
}

/* [new] a tensor in a piece's place, with the sizes and strides of `like`, which is dense and of the piece's dtype. */
pd_status pd_flat_tensor(const pd_flat *f, const pd_piece *p, const pd_tensor *like, pd_tensor **out);

/* Such a tensor, where users see it, may be given other memory (x.data = ..., resize_): then it gets the piece's place
   back, and what it holds goes along. PD_E_SHAPE, which names the piece: it has another shape than `like`. */
pd_status pd_flat_bring_back(const pd_flat *f, const pd_piece *p, const pd_tensor *like, pd_tensor *t);
static inline pd_status pd_flat_mend(const pd_flat *f, const pd_piece *p, const pd_tensor *like, pd_tensor *t) {
    if (t->storage == f->buckets[p->bucket].storage && t->offset == p->offset && t->numel == p->numel) return PD_OK;
    return pd_flat_bring_back(f, p, like, t);
}

/* n elements at `data`, which lies on the device, become `value`, or zero. */
pd_status pd_flat_fill(const pd_flat *f, void *data, int64_t n, pd_dtype t, double value);
pd_status pd_flat_clear(const pd_flat *f, void *data, int64_t n, pd_dtype t);
/* Zeros between the pieces of a bucket, where alignment leaves gaps. */
pd_status pd_flat_clear_gaps(const pd_flat *f, int b);

#endif
