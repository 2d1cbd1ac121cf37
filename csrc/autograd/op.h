/* What an op is: a const descriptor at the bottom of its own file, plus one row in ops/ops.def.

   The signature is one string, parsed once (sig.h):
     name(Type param=default, ...)

   Types of inputs:
     Tensor, Tensor?
     Tensor[], Tensor?[]   one list an op
     Operand               a Tensor or a number

   Types of attributes       in the attrs struct
     Scalar                  pd_scalar, as for each Operand
     int, int?               int64_t (None: PD_NONE_INT)
     int[n]                  int64_t[n] (one number stands for n equal ones)
     int[], int[]?           pd_ints (None: n = -1)
     float                   double
     bool                    int64_t
     dtype                   int64_t (None: PD_NO_DTYPE)
     enum(a|b|c)             int64_t: the position of the word
     format                  int64_t: a pd_format (None: PD_FORMAT_KEEP)
     rng                     pd_rng_key: not visible in Python, new for each call

   Inputs fill pd_call.in in the order of the signature; an Operand that is a number is NULL there. Attributes fill the
   op's attrs struct in the same order, each a multiple of 8 bytes. The struct is plain data, which the tape's node
   copies, so a call can be replayed. */
#ifndef PD_AUTOGRAD_OP_H
#define PD_AUTOGRAD_OP_H

#include "base/rng.h"
#include "tensor/tensor.h"

#define PD_MAX_OUTS 4
#define PD_MAX_PARAMS 16
#define PD_MAX_ATTRS 512 /* bytes */
#define PD_NONE_INT INT64_MIN

/* A number as the user wrote it. Its category decides promotion (docs/internals/design.md, "Dtypes and promotion"); cat
   -1: not given. */
typedef struct pd_scalar {
    double d;
    int64_t i; /* the exact value, if cat is PD_CAT_INT or PD_CAT_BOOL */
    int64_t cat;
    double im; /* the imaginary part, if cat is PD_CAT_COMPLEX */
} pd_scalar;

typedef struct pd_ints {
    int64_t n; /* -1: None */
    int64_t v[PD_MAX_DIMS];
} pd_ints;

typedef enum pd_format {
    PD_FORMAT_KEEP,
    PD_FORMAT_CONTIGUOUS,
    PD_FORMAT_CHANNELS_LAST,
    PD_FORMAT_CHANNELS_LAST_3D
} pd_format;

typedef enum pd_promote {
    PD_NONE,  /* inputs stay as they are; infer checks dtypes */
    PD_GIVEN, /* computed in the dtype attribute if it is given, else infer decides (sum: integers give int64) */
    PD_SAME,  /* all tensors must have one dtype (a floating one if the op has a gradient), else DTypeError */
    PD_ARITH, /* computed and returned in the promoted dtype */
    PD_INT_TO_FLOAT, /* PD_ARITH, but integers and bool become the default float dtype */
    PD_BOOL_OUT,     /* computed in the promoted dtype, returns bool */
} pd_promote;

typedef enum pd_cast { /* under autocast (autocast.h), for inputs that are floating and not float64 */
                       PD_CAST_KEEP,
                       PD_CAST_LOW,       /* computed in autocast's dtype */
                       PD_CAST_FP32,      /* computed in float32 */
                       PD_CAST_FP32_READ, /* PD_CAST_FP32, but a 16-bit first input is read as it is */
                       PD_CAST_FP32_CUDA, /* computed in float32 by CUDA's list of ops, unchanged by the CPU's */
                       PD_CAST_BACK,      /* by CUDA's list: in float32; by the CPU's: in float32, the other inputs
                                             being float32, returned in the first input's dtype */
                       PD_CAST_WIDEST,    /* computed in the widest dtype of the inputs, as promotion does anyway */
} pd_cast;

enum { /* pd_op.save */
    PD_SAVE_NONE = 0,
#define PD_SAVE_IN(i) (1u << (i))
#define PD_SAVE_OUT(i) (1u << (16 + (i)))
};

enum { /* pd_op.flags */
    PD_FUNC = 1,     /* pydist.name */
    PD_METHOD = 2,   /* Tensor.name */
    PD_NN = 4,       /* pydist.nn.functional.name */
    PD_INPLACE = 8,  /* generates an in-place form name_, and out= */
    PD_VIEW = 16,    /* output 0 is a view of input 0 */
    PD_NO_BROADCAST_GRAD = 32, /* vjps already return the inputs' shapes */
    PD_CONTIGUOUS = 64,        /* the kernel writes contiguous outputs only */
    PD_SAVES_GEOMETRY = 128,   /* only pd_vjp_geometry reads what it saves, so saved-tensor hooks do not see it */
    PD_ANY_DEVICE = 256,       /* inputs may be on different devices; infer says where the outputs are */
    PD_MIXED = 512,            /* the kernel reads F32, F16 and BF16 beside each other, so none of them is cast */
    PD_EXACT = 1024,           /* PD_MIXED, and numbers and 0-d tensors are not rounded to 16 bits */
    PD_REARRANGES = 2048,      /* a view that shows each element of input 0 once */
};

typedef enum pd_linear { /* pd_op.linear: whether the sum of outputs is the output of sums */
    PD_LINEAR_NOT,
    PD_LINEAR_COPY,  /* yes: the output is a copy of an input */
    PD_LINEAR_ALL,   /* yes, of the sums of all inputs: add */
    PD_LINEAR_ONE,   /* of one input, if the others have one value: mul */
    PD_LINEAR_FIRST, /* of the first, if the others have one value: div */
} pd_linear;

struct pd_vjp;

/* A part of a tensor: indices [from, to) of one dimension, all of them (dense) or some. */
typedef struct pd_slice {
    int dim;
    int64_t from, to;
    bool dense;
} pd_slice;

/* A call, as infer, kernel and compose see it. */
typedef struct pd_call {
    const struct pd_def *def;
    const void *attrs;
    pd_tensor **in;              /* [borrowed] after promotion; NULL: an optional one that is missing */
    pd_tensor *out[PD_MAX_OUTS]; /* in infer: shells without geometry; in kernel: allocated; compose sets them, [new] */
    int nin, nout;
    pd_tensor *destination; /* [borrowed] where output 0, a gradient, should be made; NULL: anywhere */
    bool wants; /* the call will be recorded, so a compose that has its own gradient may prepare it */
    bool each;  /* set by infer: each element of the output depends on one place of the inputs only */
    void *scratch;
} pd_call;

typedef struct pd_op {
    const char *sig, *doc;
    pd_promote promote;
    pd_cast cast;
    pd_linear linear;
    uint32_t save, flags;
    size_t attrs; /* sizeof the attrs struct: checked against the signature */
    int nout;          /* 0 means 1; a compose may give fewer or more */
    int visible;       /* how many outputs a caller sees, the others serve the gradient; 0 means all */
    const char *names; /* names of several visible outputs, for the named tuple: "values indices" */
    int reads_low;     /* 1 + the float32 output whose gradient vjp_fast reads in 16 bits, too; 0: none */
    int bias;          /* 1 + the input whose gradient is the sum of output 0's over all dims but the last; 0: none */
    const struct pd_op *elementwise; /* called if the second argument is a tensor: max(x, y) is maximum(x, y) */
    /* Checks the inputs and sets dtype, size and strides of out[] (pd_out_*). A view op also sets the storage, by
       pd_tensor_view_of. */
    pd_status (*infer)(pd_call *c);
    /* An op has one of these two; a view has neither. Kernels never allocate: `scratch` says how many bytes they
       need. */
    pd_status (*kernel)(const pd_call *c);
    pd_status (*compose)(pd_call *c);
    size_t (*scratch)(const pd_call *c);
    /* Of a view that shows a part of its input, which has this shape: that part. */
    pd_slice (*part)(const void *attrs, int ndim, const int64_t *size);
    /* Whether the gradient of each input of the output's shape is that of the output. NULL: it is not. */
    bool (*passes)(const void *attrs);
    /* Nanoseconds of work on one core, if that is not about numel. It decides whether the call gives up the GIL. */
    double (*work)(const pd_call *c);
    /* Compute the inputs' gradients from the outputs' gradients. vjp uses only ops, so that it can be differentiated
       again; vjp_fast may call kernels and runs if create_graph is false. */
    void (*vjp)(struct pd_vjp *v);
    void (*vjp_fast)(struct pd_vjp *v);
} pd_op;

typedef enum pd_type {
    PD_T_TENSOR,
    PD_T_TENSOR_OPT,
    PD_T_TENSORS,
    PD_T_TENSORS_OPT,
    PD_T_OPERAND,
    PD_T_SCALAR,
    PD_T_INT,
    PD_T_INT_OPT,
    PD_T_INT_N,
    PD_T_INTS,
    PD_T_INTS_OPT,
    PD_T_FLOAT,
    PD_T_BOOL,
    PD_T_DTYPE,
    PD_T_ENUM,
    PD_T_FORMAT,
    PD_T_RNG,
} pd_type;

typedef struct pd_param {
    char name[24];
    pd_type type;
    int n;            /* the n of int[n] */
    int input;        /* index into in[], or -1 */
    int attr;         /* byte offset into attrs, or -1 */
    bool optional;    /* has a default */
    char choices[64]; /* "none|mean|sum" */
} pd_param;

/* A registered op: descriptor and parsed signature. */
typedef struct pd_def {
    const pd_op *op;
    char name[40];
    int nparams, ninputs; /* a list counts as one input here; pd_call.nin counts its tensors */
    bool on_complex;      /* the op takes complex tensors (ops/complex.def) */
    int list;             /* index of the list param's first tensor in in[], or -1 */
    pd_param params[PD_MAX_PARAMS];
    uint64_t defaults[PD_MAX_ATTRS / 8]; /* attrs with all defaults filled in */
} pd_def;

/* Parses op->sig into def. PD_E_VALUE: the signature is wrong, which is a bug that tests find. */
pd_status pd_def_init(pd_def *def, const pd_op *op);

size_t pd_param_bytes(const pd_param *p); /* of its attribute; 0: it has none */

/* The text of the parameter's default, as in Python; "" if it has none. */
void pd_param_default(const pd_def *def, const pd_param *p, char *to, size_t size);

/* Helpers for infer. */
static inline pd_status pd_out_like(pd_call *c, int k, pd_dtype dtype, const pd_tensor *like) {
    pd_tensor *o = c->out[k];
    o->dtype = (int8_t)dtype;
    o->ndim = like->ndim;
    o->numel = like->numel;
    for (int i = 0; i < like->ndim; i++) o->size[i] = like->size[i];
    pd_shape_contiguous(o->ndim, o->size, o->stride);
    return PD_OK;
}
static inline pd_status pd_out_shape(pd_call *c, int k, pd_dtype dtype, int ndim, const int64_t *size) {
    pd_tensor *o = c->out[k];
    PD_TRY(pd_shape_numel(c->def->name, ndim, size, &o->numel));
    o->dtype = (int8_t)dtype;
    o->ndim = (int8_t)ndim;
    for (int i = 0; i < ndim; i++) o->size[i] = size[i];
    pd_shape_contiguous(o->ndim, o->size, o->stride);
    return PD_OK;
}

#endif
