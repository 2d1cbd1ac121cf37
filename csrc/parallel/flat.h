/* Flat memory: the buckets of a layout, as memory that collectives use in place, and tensors in it.

   On a CPU a bucket is a segment of the group's symmetric memory. On a GPU it is memory like a tensor's, or, with
   PYDIST_REGISTER, a part of one block that is registered with NCCL. It starts as zeros and lives as long as a tensor
   in it. The last bucket may have a tail: elements of its dtype after those of its pieces.

   A bucket may have two parts: the same pieces once more, at the same distance in all buckets' memory of all ranks.
   With `wide`, elements of 16-bit dtypes take the place of a float32, for sums.

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

typedef struct pd_flat_kind {
    const char *who; /* [borrowed] "DistributedDataParallel": how errors begin */
    int64_t tail;    /* elements */
    int parts;       /* 0 counts as 1 */
    bool wide;
} pd_flat_kind;

typedef struct pd_flat {
    pd_flat_kind kind;
    const pd_layout *layout;   /* [borrowed] with buckets */
    const pd_device *device;
    pd_flat_bucket *buckets;   /* by number */
    pd_group_memory *registered; /* the block that contains all buckets, or NULL */
    size_t used;               /* bytes of it that are in use */
} pd_flat;

/* All ranks of the group call it. group NULL: memory of this rank alone. The layout must outlive it. */
pd_status pd_flat_init(pd_flat *f, const pd_layout *l, pd_flat_kind kind, pd_group *group, const pd_device *device);
void pd_flat_fini(pd_flat *f); /* also after init has failed, and for zeros */

/* The dtype of a bucket's elements. */
pd_dtype pd_flat_dtype(const pd_flat *f, int b);
/* Bytes from a bucket's first part to its second one, in multiples of 64. */
size_t pd_flat_apart(const pd_flat *f, int b);
/* The address of a piece in a part of its bucket. */
char *pd_flat_piece(const pd_flat *f, const pd_piece *p, int part);

static inline bool pd_flat_on_host(const pd_flat *f) { return f->device->kind == PD_DEVICE_CPU; }
/* The address of the first part's tail. */
static inline char *pd_flat_tail(const pd_flat *f) {
    int last = f->layout->nbuckets - 1;
    return f->buckets[last].data + (size_t)f->layout->buckets[last].numel * pd_dtype_size(pd_flat_dtype(f, last));
}

/* [new] a tensor over a piece's memory in a part, with the sizes and strides of `like`, which is dense and of the
   piece's dtype; so is the flat memory's. */
pd_status pd_flat_tensor(const pd_flat *f, const pd_piece *p, int part, const pd_tensor *like, pd_tensor **out);

/* Where such a tensor lies, in elements from the bucket's start. */
int64_t pd_flat_offset(const pd_flat *f, const pd_piece *p, int part);
/* A user may have given such a tensor other memory (x.data = ..., resize_). Then this function copies its values into
   the piece's memory and gives it that memory back. PD_E_SHAPE, which names the piece: its shape differs from
   `like`. */
pd_status pd_flat_bring_back(const pd_flat *f, const pd_piece *p, int part, const pd_tensor *like, pd_tensor *t);
static inline pd_status pd_flat_mend(const pd_flat *f, const pd_piece *p, int part, const pd_tensor *like,
                                     pd_tensor *t) {
    int64_t offset = part ? pd_flat_offset(f, p, part) : p->offset;
    if (t->storage == f->buckets[p->bucket].storage && t->offset == offset && t->numel == p->numel) return PD_OK;
    return pd_flat_bring_back(f, p, part, like, t);
}

/* Fills n elements at `data`, which is on the device, with `value`. */
pd_status pd_flat_fill(const pd_flat *f, void *data, int64_t n, pd_dtype t, double value);
pd_status pd_flat_clear(const pd_flat *f, void *data, int64_t n, pd_dtype t);
/* Clears the gaps that alignment leaves between the pieces of a bucket. */
pd_status pd_flat_clear_gaps(const pd_flat *f, int b);

#endif
