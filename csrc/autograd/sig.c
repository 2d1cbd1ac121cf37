/* The parser of op signatures: a few string scans, run once per op. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/op.h"

static const struct { const char *text; pd_type type; } types[] = {
    {"Tensor?[]", PD_T_TENSORS_OPT}, {"Tensor[]", PD_T_TENSORS}, {"Tensor?", PD_T_TENSOR_OPT}, {"Tensor", PD_T_TENSOR},
    {"Operand", PD_T_OPERAND}, {"Scalar", PD_T_SCALAR}, {"int[]?", PD_T_INTS_OPT}, {"int[]", PD_T_INTS},
    {"int?", PD_T_INT_OPT}, {"int", PD_T_INT}, {"float", PD_T_FLOAT}, {"bool", PD_T_BOOL}, {"dtype", PD_T_DTYPE},
    {"format", PD_T_FORMAT}, {"rng", PD_T_RNG},
};

static bool is_input(pd_type t) { return t <= PD_T_OPERAND; }

size_t pd_param_bytes(const pd_param *p) {
    switch (p->type) {
    case PD_T_OPERAND: case PD_T_SCALAR: return sizeof(pd_scalar);
    case PD_T_INT_N: return 8 * (size_t)p->n;
    case PD_T_INTS: case PD_T_INTS_OPT: return sizeof(pd_ints);
    case PD_T_RNG: return sizeof(pd_rng_key);
    case PD_T_TENSOR: case PD_T_TENSOR_OPT: case PD_T_TENSORS: case PD_T_TENSORS_OPT: return 0;
    default: return 8;
    }
}

static bool parse_type(const char *text, pd_param *p) {
    if (sscanf(text, "int[%d]", &p->n) == 1) {
        p->type = PD_T_INT_N;
        return true;
    }
    if (sscanf(text, "enum(%63[a-z_|])", p->choices) == 1) {
        p->type = PD_T_ENUM;
        return true;
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(text, types[i].text)) {
            p->type = types[i].type;
            return true;
        }
    return false;
}

static int choice(const char *choices, const char *word) {
    size_t n = strlen(word);
    int k = 0;
    for (const char *c = choices; c; c = strchr(c, '|'), c = c ? c + 1 : NULL, k++)
        if (!strncmp(c, word, n) && (c[n] == '|' || !c[n])) return k;
    return -1;
}

static bool parse_default(const char *text, pd_param *p, void *at) {
    bool none = !strcmp(text, "None");
    int64_t i = strtoll(text, NULL, 10);
    double d = strtod(text, NULL);
    p->optional = true;
    switch (p->type) {
    case PD_T_TENSOR_OPT: case PD_T_OPERAND: return none;
    case PD_T_SCALAR:
        *(pd_scalar *)at = (pd_scalar){.d = d, .i = i, .cat = strpbrk(text, ".e") ? PD_CAT_FLOAT : PD_CAT_INT};
        if (none) ((pd_scalar *)at)->cat = -1;
        return true;
    case PD_T_INT: *(int64_t *)at = i; return true;
    case PD_T_INT_OPT: *(int64_t *)at = none ? PD_NONE_INT : i; return true;
    case PD_T_INT_N: for (int k = 0; k < p->n; k++) ((int64_t *)at)[k] = i; return true;
    case PD_T_INTS: ((pd_ints *)at)->n = 0; return !strcmp(text, "[]");
    case PD_T_INTS_OPT: ((pd_ints *)at)->n = -1; return none;
    case PD_T_FLOAT: *(double *)at = d; return true;
    case PD_T_BOOL: *(int64_t *)at = !strcmp(text, "True"); return true;
    case PD_T_DTYPE: *(int64_t *)at = PD_NO_DTYPE; return none;
    case PD_T_FORMAT: *(int64_t *)at = PD_FORMAT_KEEP; return none;
    case PD_T_ENUM: *(int64_t *)at = choice(p->choices, text); return *(int64_t *)at >= 0;
    default: return false;
    }
}

pd_status pd_def_init(pd_def *def, const pd_op *op) {
    const char *s = op->sig, *open = strchr(s, '(');
    size_t offset = 0;
    *def = (pd_def){.op = op, .list = -1};
    if (!open || (size_t)(open - s) >= sizeof def->name)
        return pd_fail(PD_E_VALUE, "op: the signature is not valid: %s (expected name(type parameter, ...))", s);
    memcpy(def->name, s, (size_t)(open - s));
    for (s = open + 1; *s && *s != ')';) {
        pd_param *p = &def->params[def->nparams];
        char type[96], name[24] = "", value[40] = "";
        int used = 0;
        if (def->nparams == PD_MAX_PARAMS)
            return pd_fail(PD_E_VALUE, "op: the signature has too many parameters: %s (expected at most PD_MAX_PARAMS)",
                           op->sig);
        bool ok = sscanf(s, " %95[^ ] %23[a-z_A-Z0-9]%n", type, name, &used) == 2 && parse_type(type, p);
        s += used;
        if (ok && *s == '=') {
            used = 0;
            ok = sscanf(s, "=%39[^,)]%n", value, &used) == 1;
            s += used;
        }
        if (*s == ',') s++;
        if (!ok)
            return pd_fail(PD_E_VALUE, "op: the signature is not valid at '%s %s': %s (expected a type and a name)",
                           type, name, op->sig);
        memcpy(p->name, name, sizeof name);
        p->input = p->attr = -1;
        if (is_input(p->type)) p->input = def->ninputs++;
        if (p->type == PD_T_TENSORS || p->type == PD_T_TENSORS_OPT) {
            if (def->list >= 0)
                return pd_fail(PD_E_VALUE, "op: the signature has two lists of tensors: %s (expected at most one)",
                               op->sig);
            def->list = p->input;
        }
        size_t bytes = pd_param_bytes(p);
        if (offset + bytes > sizeof def->defaults)
            return pd_fail(PD_E_VALUE, "op: the signature has too many attributes: %s (expected fewer bytes)", op->sig);
        if (bytes) p->attr = (int)offset;
        void *at = (char *)def->defaults + offset;
        if (p->type == PD_T_OPERAND) ((pd_scalar *)at)->cat = -1;
        if (p->type == PD_T_RNG) p->optional = true;
        if (*value && !parse_default(value, p, at))
            return pd_fail(PD_E_VALUE, "op: the default %s is not valid: %s (expected a value of the parameter's type)",
                           value, op->sig);
        offset += bytes;
        def->nparams++;
    }
    if (offset != op->attrs)
        return pd_fail(PD_E_VALUE, "%s: attrs has %zu bytes, the signature %zu (expected equal sizes)", def->name,
                       op->attrs, offset);
    return PD_OK;
}

void pd_param_default(const pd_def *def, const pd_param *p, char *to, size_t size) {
    const void *at = p->attr < 0 ? NULL : (const char *)def->defaults + p->attr;
    *to = 0;
    if (!p->optional) return;
    switch (p->type) {
    case PD_T_SCALAR: {
        const pd_scalar *s = at;
        if (s->cat < 0) snprintf(to, size, "None");
        else snprintf(to, size, s->cat == PD_CAT_FLOAT ? "%g" : "%.0f", s->d);
        return;
    }
    case PD_T_INT: case PD_T_INT_N: snprintf(to, size, "%" PRId64, *(const int64_t *)at); return;
    case PD_T_INT_OPT:
        if (*(const int64_t *)at == PD_NONE_INT) snprintf(to, size, "None");
        else snprintf(to, size, "%" PRId64, *(const int64_t *)at);
        return;
    case PD_T_INTS: snprintf(to, size, "()"); return;
    case PD_T_FLOAT: snprintf(to, size, "%g", *(const double *)at); return;
    case PD_T_BOOL: snprintf(to, size, *(const int64_t *)at ? "True" : "False"); return;
    case PD_T_ENUM: {
        const char *c = p->choices;
        for (int64_t k = *(const int64_t *)at; k > 0; k--) c = strchr(c, '|') + 1;
        snprintf(to, size, "'%.*s'", (int)strcspn(c, "|"), c);
        return;
    }
    default: snprintf(to, size, "None");
    }
}
