/* Reads pickles of strangers without trusting them. This file makes containers, numbers and text. All other objects
   come from a maker in Python (pydist/_unpickle.py), which decides what a name means and which object may get which
   state. So a file cannot import anything, call what it has not named, or change what it has not made. Nothing is
   allocated before its bytes have been read, and keys that would take for ever to hash are refused. The opcodes are
   those of protocols 0 to 5, without objects outside the file (PERSID, NEXT_BUFFER, EXT*) and classes of Python 1
   (INST, OBJ). */
#include "py/py.h"

enum { KEY_DEPTH = 100 }; /* how deep tuples in a key may nest; Python hashes them by a recursion without limit */

typedef struct slot {
    PyObject *o;     /* [owned] */
    Py_ssize_t memo; /* where PUT has put it last; -1: nowhere */
    bool named;      /* find() has returned it: the file may call it but not change it */
} slot;

typedef struct slots {
    slot *v;
    Py_ssize_t n, room;
} slots;

typedef struct reader {
    const unsigned char *begin, *at, *end;
    slots stack, memo; /* memo: entries without an object are free */
    Py_ssize_t *marks, marks_n, marks_room, fence, memo_used;
    long long work; /* how much more work on hashing keys and copying items is allowed */
    PyObject *maker;
    const char *encoding; /* of Python 2's str */
} reader;

static bool wrong(reader *r, const char *what) {
    PyErr_Format(PyExc_ValueError, "unpickle: at byte %zd of the pickle: %s", (Py_ssize_t)(r->at - r->begin), what);
    return false;
}

static bool grow(slots *s, Py_ssize_t n) {
    if (n <= s->room) return true;
    Py_ssize_t room = n > 2 * s->room ? n + 16 : 2 * s->room;
    slot *v = (size_t)room > PY_SSIZE_T_MAX / sizeof *v ? NULL : PyMem_Realloc(s->v, sizeof *v * (size_t)room);
    if (!v) return PyErr_NoMemory(), false;
    s->v = v;
    s->room = room;
    return true;
}

static void drop(slots *s, Py_ssize_t n) { /* until n entries are left */
    while (s->n > n) {
        PyObject *o = s->v[--s->n].o;
        Py_XDECREF(o);
    }
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static const unsigned char *take(reader *r, uint64_t n) {
    const unsigned char *at = r->at;
    if (n > (uint64_t)(r->end - at)) return wrong(r, "the pickle is cut off (expected more bytes)"), NULL;
    r->at += n;
    return at;
}

static bool number(reader *r, int bytes, uint64_t *value) {
    const unsigned char *p = take(r, (uint64_t)bytes);
    if (!p) return false;
    *value = 0;
    for (int i = 0; i < bytes; i++) *value |= (uint64_t)p[i] << (8 * i);
    return true;
}

/* Reads a text after its length. */
static const char *counted(reader *r, int bytes, Py_ssize_t *n) {
    uint64_t size;
    const unsigned char *p = number(r, bytes, &size) ? take(r, size) : NULL;
    *n = p ? (Py_ssize_t)size : 0;
    return (const char *)p;
}

static const char *line(reader *r, Py_ssize_t *n) {
    const unsigned char *p = r->at, *end = memchr(p, '\n', (size_t)(r->end - p));
    if (!end) return wrong(r, "a line has no end (expected a newline)"), NULL;
    r->at = end + 1;
    *n = end - p;
    return (const char *)p;
}

/* ---- the stack --------------------------------------------------------------------------------------------------- */

/* Pushes o and owns the reference. False: o is NULL, and an exception is set. */
static bool push(reader *r, PyObject *o) {
    if (!o) return false;
    if (!grow(&r->stack, r->stack.n + 1)) return Py_DECREF(o), false;
    r->stack.v[r->stack.n++] = (slot){.o = o, .memo = -1};
    return true;
}

static bool has(reader *r, Py_ssize_t n) {
    return r->stack.n - r->fence >= n ? true : wrong(r, "the stack is too short (expected an operand of the opcode)");
}

static slot *top(reader *r, Py_ssize_t down) { return &r->stack.v[r->stack.n - 1 - down]; }

static PyObject *pop(reader *r) { return r->stack.v[--r->stack.n].o; }

static bool mark(reader *r) {
    if (r->marks_n == r->marks_room) {
        Py_ssize_t room = 2 * r->marks_room + 16, *v = PyMem_Realloc(r->marks, sizeof *v * (size_t)room);
        if (!v) return PyErr_NoMemory(), false;
        r->marks = v;
        r->marks_room = room;
    }
    r->fence = r->marks[r->marks_n++] = r->stack.n;
    return true;
}

/* Removes the last mark. *from: where the entries above it begin. */
static bool unmark(reader *r, Py_ssize_t *from) {
    if (!r->marks_n) return wrong(r, "there is no mark on the stack (expected one before the opcode)");
    *from = r->marks[--r->marks_n];
    r->fence = r->marks_n ? r->marks[r->marks_n - 1] : 0;
    return true;
}

/* [new] a tuple or list of the entries from `from` on, which are removed. */
static PyObject *gathered(reader *r, Py_ssize_t from, bool is_list) {
    Py_ssize_t n = r->stack.n - from;
    PyObject *out = is_list ? PyList_New(n) : PyTuple_New(n);
    if (!out) return NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *o = r->stack.v[from + i].o;
        if (is_list) PyList_SET_ITEM(out, i, o);
        else PyTuple_SET_ITEM(out, i, o);
    }
    r->stack.n = from;
    return out;
}

/* ---- the memo ---------------------------------------------------------------------------------------------------- */

static bool put(reader *r, uint64_t at) {
    if (!has(r, 1)) return false;
    if (at > (uint64_t)(r->at - r->begin))
        return wrong(r, "the number of an entry in the memo is too large (expected less than the file has bytes)");
    Py_ssize_t i = (Py_ssize_t)at;
    if (!grow(&r->memo, i + 1)) return false;
    while (r->memo.n <= i) r->memo.v[r->memo.n++] = (slot){.memo = -1};
    slot *s = top(r, 0);
    s->memo = i;
    PyObject *before = r->memo.v[i].o;
    r->memo_used += !before;
    r->memo.v[i] = (slot){.o = Py_NewRef(s->o), .memo = i, .named = s->named};
    Py_XDECREF(before);
    return true;
}

static bool get(reader *r, uint64_t at) {
    if (at >= (uint64_t)r->memo.n || !r->memo.v[at].o)
        return wrong(r, "the memo has no such entry (expected one that was put before)");
    slot s = r->memo.v[at];
    if (!push(r, Py_NewRef(s.o))) return false;
    *top(r, 0) = s;
    return true;
}

/* ---- keys and items ---------------------------------------------------------------------------------------------- */

static bool spend(reader *r, long long n) {
    r->work -= n;
    return r->work >= 0 ? true
                        : wrong(r, "keys or copies are too large (expected work in proportion to the file's length)");
}

/* Counts the work of hashing. A tuple of tuples of ... may be small in a file and take for ever to hash. */
static bool may_be_key(reader *r, PyObject *o, int depth) {
    if (PyUnicode_CheckExact(o)) return true;
    if (!spend(r, 1)) return false;
    if (PyTuple_Check(o)) {
        if (!depth) return wrong(r, "a key has too many nested tuples (expected fewer)");
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
            if (!may_be_key(r, PyTuple_GET_ITEM(o, i), depth - 1)) return false;
    } else if (PyLong_CheckExact(o)) {
        int is_large;
        long long value = PyLong_AsLongLongAndOverflow(o, &is_large);
        if (value == -1 && PyErr_Occurred()) return false;
        if (is_large) {
            PyObject *bits = PyObject_CallMethod(o, "bit_length", NULL);
            value = bits ? PyLong_AsLongLong(bits) : -1;
            Py_XDECREF(bits);
            return value >= 0 && spend(r, value / 64);
        }
    }
    return true;
}

static bool set_item(reader *r, PyObject *dict, PyObject *key, PyObject *value) {
    if (!may_be_key(r, key, KEY_DEPTH)) return false;
    return !(PyDict_CheckExact(dict) ? PyDict_SetItem(dict, key, value) : PyODict_SetItem(dict, key, value));
}

static bool is_dict(PyObject *o) { return PyDict_CheckExact(o) || PyODict_CheckExact(o); }

/* Moves the entries from `from` on, as keys and values, into the dict below them. */
static bool set_items(reader *r, Py_ssize_t from) {
    Py_ssize_t n = r->stack.n - from;
    if (from < 1 || from - 1 < r->fence)
        return wrong(r, "there is no dict below the items (expected one on the stack)");
    slot *s = &r->stack.v[from - 1];
    if (n % 2) return wrong(r, "a key has no value (expected pairs)");
    if (s->named) return wrong(r, "items are added to a global name (expected an object that the pickle has made)");
    if (is_dict(s->o)) {
        for (Py_ssize_t i = from; i < from + n; i += 2)
            if (!set_item(r, s->o, r->stack.v[i].o, r->stack.v[i + 1].o)) return false;
        drop(&r->stack, from);
        return true;
    }
    for (Py_ssize_t i = from; i < from + n; i += 2)
        if (!may_be_key(r, r->stack.v[i].o, KEY_DEPTH)) return false;
    PyObject *items = gathered(r, from, true);
    PyObject *done = items ? PyObject_CallMethod(r->maker, "set", "OO", r->stack.v[from - 1].o, items) : NULL;
    Py_XDECREF(items);
    Py_XDECREF(done);
    return done;
}

static bool append(reader *r, Py_ssize_t from) {
    if (from < 1 || from - 1 < r->fence)
        return wrong(r, "there is no list below the items (expected one on the stack)");
    slot *s = &r->stack.v[from - 1];
    if (s->named) return wrong(r, "items are added to a global name (expected an object that the pickle has made)");
    if (PyList_CheckExact(s->o)) {
        for (Py_ssize_t i = from; i < r->stack.n; i++)
            if (PyList_Append(s->o, r->stack.v[i].o)) return false;
        drop(&r->stack, from);
        return true;
    }
    PyObject *items = gathered(r, from, true);
    PyObject *done = items ? PyObject_CallMethod(r->maker, "append", "OO", r->stack.v[from - 1].o, items) : NULL;
    Py_XDECREF(items);
    Py_XDECREF(done);
    return done;
}

/* [new] a set or frozenset of the items */
static PyObject *set_of(reader *r, bool is_frozen, PyObject *items) {
    PyObject *set = is_frozen ? PyFrozenSet_New(NULL) : PySet_New(NULL);
    for (Py_ssize_t i = 0; set && i < PyList_GET_SIZE(items); i++)
        if (!may_be_key(r, PyList_GET_ITEM(items, i), KEY_DEPTH) || PySet_Add(set, PyList_GET_ITEM(items, i)))
            Py_CLEAR(set);
    return set;
}

static bool add_items(reader *r, Py_ssize_t from) {
    PyObject *set = from < 1 || from - 1 < r->fence ? NULL : r->stack.v[from - 1].o;
    if (!set || Py_TYPE(set) != &PySet_Type)
        return wrong(r, "there is no set below the items (expected one on the stack)");
    for (Py_ssize_t i = from; i < r->stack.n; i++)
        if (!may_be_key(r, r->stack.v[i].o, KEY_DEPTH) || PySet_Add(set, r->stack.v[i].o)) return false;
    drop(&r->stack, from);
    return true;
}

/* ---- what is called ---------------------------------------------------------------------------------------------- */

/* OrderedDict([[key, value], ...]), as Python 2 wrote it. */
static PyObject *ordered(reader *r, PyObject *items) {
    PyObject *dict = PyODict_New();
    for (Py_ssize_t i = 0; dict && i < PyList_GET_SIZE(items); i++) {
        PyObject *pair = PyList_GET_ITEM(items, i);
        bool is_list = PyList_CheckExact(pair);
        if (!(is_list || PyTuple_CheckExact(pair)) || Py_SIZE(pair) != 2) {
            wrong(r, "an item of an OrderedDict is not a pair (expected key and value)");
            Py_CLEAR(dict);
        } else if (!set_item(r, dict, is_list ? PyList_GET_ITEM(pair, 0) : PyTuple_GET_ITEM(pair, 0),
                             is_list ? PyList_GET_ITEM(pair, 1) : PyTuple_GET_ITEM(pair, 1)))
            Py_CLEAR(dict);
    }
    return dict;
}

static PyObject *called(reader *r, PyObject *f, PyObject *args) {
    bool is_set = f == (PyObject *)&PySet_Type || f == (PyObject *)&PyFrozenSet_Type;
    if ((is_set || f == (PyObject *)&PyODict_Type) && PyTuple_GET_SIZE(args)) {
        PyObject *items = PyTuple_GET_ITEM(args, 0);
        if (PyTuple_GET_SIZE(args) != 1 || !PyList_CheckExact(items))
            return wrong(r, "the argument of OrderedDict is not a list (expected a list of items)"), NULL;
        if (!spend(r, PyList_GET_SIZE(items))) return NULL;
        return is_set ? set_of(r, f == (PyObject *)&PyFrozenSet_Type, items) : ordered(r, items);
    }
    return PyObject_Call(f, args, NULL);
}

static bool reduce(reader *r) {
    if (!has(r, 2)) return false;
    PyObject *args = top(r, 0)->o;
    slot *s = top(r, 1);
    if (!s->named || !PyTuple_CheckExact(args))
        return wrong(r, "a call of something that is not a function (expected a global name and a tuple)");
    PyObject *made = called(r, s->o, args);
    if (!made) return false;
    drop(&r->stack, r->stack.n - 2);
    return push(r, made);
}

static bool new_object(reader *r, bool by_name) {
    if (!has(r, by_name ? 3 : 2)) return false;
    PyObject *names = by_name ? top(r, 0)->o : NULL, *args = top(r, by_name)->o;
    slot *s = top(r, 1 + by_name);
    if (!s->named || !PyTuple_CheckExact(args) || (names && !PyDict_CheckExact(names)))
        return wrong(r, "a new object of something that is not a class (expected a global name and its arguments)");
    PyObject *made = PyObject_CallMethod(r->maker, "new", "OOO", s->o, args, names ? names : Py_None);
    if (!made) return false;
    drop(&r->stack, r->stack.n - 2 - by_name);
    return push(r, made);
}

/* The maker's result takes the place of the object on the stack and in the memo. */
static bool build(reader *r) {
    if (!has(r, 2)) return false;
    slot *s = top(r, 1);
    if (s->named) return wrong(r, "a state is given to a global name (expected an object that the pickle has made)");
    PyObject *made = PyObject_CallMethod(r->maker, "build", "OO", s->o, top(r, 0)->o);
    if (!made) return false;
    drop(&r->stack, r->stack.n - 1);
    PyObject *before = s->o;
    slot *kept = s->memo >= 0 ? &r->memo.v[s->memo] : NULL;
    s->o = made;
    if (kept && kept->o == before && made != before) {
        kept->o = Py_NewRef(made);
        Py_DECREF(before);
    }
    Py_DECREF(before);
    return true;
}

static bool find(reader *r, PyObject *module, PyObject *name) { /* owns both */
    bool ok = module && name && push(r, PyObject_CallMethod(r->maker, "find", "OO", module, name));
    if (ok) top(r, 0)->named = true;
    Py_XDECREF(module);
    Py_XDECREF(name);
    return ok;
}

static bool stack_global(reader *r) {
    if (!has(r, 2)) return false;
    if (!PyUnicode_CheckExact(top(r, 0)->o) || !PyUnicode_CheckExact(top(r, 1)->o))
        return wrong(r, "a name is not text (expected str)");
    PyObject *name = pop(r), *module = pop(r);
    return find(r, module, name);
}

static bool global(reader *r) {
    Py_ssize_t m, n;
    const char *module = line(r, &m), *name = module ? line(r, &n) : NULL;
    return name && find(r, PyUnicode_DecodeUTF8(module, m, NULL), PyUnicode_DecodeUTF8(name, n, NULL));
}

static bool outside(reader *r) {
    if (!has(r, 1)) return false;
    PyObject *made = PyObject_CallMethod(r->maker, "persistent", "(O)", top(r, 0)->o);
    if (!made) return false;
    Py_DECREF(pop(r));
    return push(r, made);
}

/* ---- numbers and text -------------------------------------------------------------------------------------------- */

static PyObject *integer(const char *p, Py_ssize_t n) { /* little-endian, signed */
    if (n > 8) return _PyLong_FromByteArray((const unsigned char *)p, (size_t)n, 1, 1);
    uint64_t value = n && (p[n - 1] & 0x80) ? ~(uint64_t)0 : 0;
    for (Py_ssize_t i = n; i-- > 0;) value = value << 8 | (unsigned char)p[i];
    return PyLong_FromLongLong((long long)value);
}

static PyObject *decimal(const char *p, Py_ssize_t n) {
    PyObject *text = PyUnicode_DecodeASCII(p, n, NULL), *out = text ? PyLong_FromUnicodeObject(text, 10) : NULL;
    Py_XDECREF(text);
    return out;
}

static PyObject *int_line(const char *p, Py_ssize_t n) {
    if (n == 2 && p[0] == '0' && (p[1] == '0' || p[1] == '1')) return PyBool_FromLong(p[1] == '1');
    return decimal(p, n);
}

static PyObject *float_line(const char *p, Py_ssize_t n) {
    PyObject *text = PyBytes_FromStringAndSize(p, n), *out = text ? PyFloat_FromString(text) : NULL;
    Py_XDECREF(text);
    return out;
}

/* Python 2's str, as its repr() wrote it. */
static PyObject *quoted_line(reader *r, const char *p, Py_ssize_t n) {
    if (n < 2 || p[0] != p[n - 1] || (p[0] != '\'' && p[0] != '"'))
        return wrong(r, "a text has no quotes (expected the form of Python's repr)"), NULL;
    PyObject *bytes = PyBytes_DecodeEscape(p + 1, n - 2, NULL, 0, NULL), *out = NULL;
    if (bytes) out = PyUnicode_Decode(PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes), r->encoding, "strict");
    Py_XDECREF(bytes);
    return out;
}

static bool memo_line(reader *r, uint64_t *at) {
    Py_ssize_t n;
    const char *p = line(r, &n);
    PyObject *value = p ? decimal(p, n) : NULL;
    *at = value ? PyLong_AsUnsignedLongLong(value) : 0;
    Py_XDECREF(value);
    return value && !PyErr_Occurred();
}

/* ---- opcodes ----------------------------------------------------------------------------------------------------- */

#define WITH(get, use) (p = (get)) && (use)

/* Handles an opcode of a number, a text or bytes. */
static bool literal(reader *r, char code) {
    Py_ssize_t n;
    uint64_t value;
    const char *p;
    double real;
    bool ok;
    switch (code) {
        case 'N': ok = push(r, Py_NewRef(Py_None)); break;
        case '\x88': ok = push(r, Py_NewRef(Py_True)); break;
        case '\x89': ok = push(r, Py_NewRef(Py_False)); break;
        case 'K': ok = number(r, 1, &value) && push(r, PyLong_FromLong((long)value)); break;
        case 'M': ok = number(r, 2, &value) && push(r, PyLong_FromLong((long)value)); break;
        case 'J': ok = number(r, 4, &value) && push(r, PyLong_FromLong((int32_t)value)); break;
        case '\x8a': ok = WITH(counted(r, 1, &n), push(r, integer(p, n))); break;
        case '\x8b': ok = WITH(counted(r, 4, &n), push(r, integer(p, n))); break;
        case 'I': ok = WITH(line(r, &n), push(r, int_line(p, n))); break;
        case 'L': ok = WITH(line(r, &n), push(r, decimal(p, n && p[n - 1] == 'L' ? n - 1 : n))); break;
        case 'F': ok = WITH(line(r, &n), push(r, float_line(p, n))); break;
        case 'G':
            if ((ok = number(r, 8, &value))) {
                value = __builtin_bswap64(value);
                memcpy(&real, &value, sizeof real);
                ok = push(r, PyFloat_FromDouble(real));
            }
            break;
        case 'X': ok = WITH(counted(r, 4, &n), push(r, PyUnicode_DecodeUTF8(p, n, "surrogatepass"))); break;
        case '\x8c': ok = WITH(counted(r, 1, &n), push(r, PyUnicode_DecodeUTF8(p, n, "surrogatepass"))); break;
        case '\x8d': ok = WITH(counted(r, 8, &n), push(r, PyUnicode_DecodeUTF8(p, n, "surrogatepass"))); break;
        case 'V': ok = WITH(line(r, &n), push(r, PyUnicode_DecodeRawUnicodeEscape(p, n, NULL))); break;
        case 'B': ok = WITH(counted(r, 4, &n), push(r, PyBytes_FromStringAndSize(p, n))); break;
        case 'C': ok = WITH(counted(r, 1, &n), push(r, PyBytes_FromStringAndSize(p, n))); break;
        case '\x8e': ok = WITH(counted(r, 8, &n), push(r, PyBytes_FromStringAndSize(p, n))); break;
        case '\x96': ok = WITH(counted(r, 8, &n), push(r, PyByteArray_FromStringAndSize(p, n))); break;
        case 'T': ok = WITH(counted(r, 4, &n), push(r, PyUnicode_Decode(p, n, r->encoding, "strict"))); break;
        case 'U': ok = WITH(counted(r, 1, &n), push(r, PyUnicode_Decode(p, n, r->encoding, "strict"))); break;
        case 'S': ok = WITH(line(r, &n), push(r, quoted_line(r, p, n))); break;
        default:
            ok = wrong(r, "the opcode is unsupported (expected one for containers, numbers, text and tensors)");
    }
    return ok;
}
#undef WITH

/* Handles one opcode. 1: go on, 0: the end, -1 with the exception set. */
static int step(reader *r) {
    Py_ssize_t from;
    uint64_t value;
    const unsigned char *code = take(r, 1);
    if (!code) return -1;
#define MARKED(use) unmark(r, &from) && (use)
    bool ok;
    switch ((char)*code) {
        case '\x80':
            ok = number(r, 1, &value) && (value <= 5 || wrong(r, "the protocol is unknown (expected 0 to 5)"));
            break;
        case '\x95':
            ok = number(r, 8, &value) &&
                 (value <= (uint64_t)(r->end - r->at) || wrong(r, "the pickle is cut off (expected more bytes)"));
            break;
        case '.': return has(r, 1) ? 0 : -1;
        case '(': ok = mark(r); break;
        case '0':
            if (r->stack.n == r->fence && r->marks_n) ok = unmark(r, &from);
            else if ((ok = has(r, 1))) drop(&r->stack, r->stack.n - 1);
            break;
        case '1': ok = MARKED((drop(&r->stack, from), true)); break;
        case '2':
            if ((ok = has(r, 1))) {
                slot s = *top(r, 0);
                if ((ok = push(r, Py_NewRef(s.o)))) *top(r, 0) = s;
            }
            break;
        case ']': ok = push(r, PyList_New(0)); break;
        case ')': ok = push(r, PyTuple_New(0)); break;
        case '}': ok = push(r, PyDict_New()); break;
        case '\x8f': ok = push(r, PySet_New(NULL)); break;
        case 't': ok = MARKED(push(r, gathered(r, from, false))); break;
        case 'l': ok = MARKED(push(r, gathered(r, from, true))); break;
        case '\x85': ok = has(r, 1) && push(r, gathered(r, r->stack.n - 1, false)); break;
        case '\x86': ok = has(r, 2) && push(r, gathered(r, r->stack.n - 2, false)); break;
        case '\x87': ok = has(r, 3) && push(r, gathered(r, r->stack.n - 3, false)); break;
        case '\x91': {
            PyObject *items = NULL;
            ok = MARKED((items = gathered(r, from, true)) && push(r, set_of(r, true, items)));
            Py_XDECREF(items);
            break;
        }
        case 'd': { /* a new dict below the items */
            PyObject *dict = PyDict_New();
            ok = dict && unmark(r, &from) && push(r, Py_NewRef(Py_None));
            if (ok) {
                memmove(&r->stack.v[from + 1], &r->stack.v[from], sizeof(slot) * (size_t)(r->stack.n - 1 - from));
                r->stack.v[from] = (slot){.o = Py_NewRef(dict), .memo = -1};
                Py_DECREF(Py_None); /* the dict takes its place */
                ok = set_items(r, from + 1);
            }
            Py_XDECREF(dict);
            break;
        }
        case 'a': ok = has(r, 2) && append(r, r->stack.n - 1); break;
        case 'e': ok = MARKED(append(r, from)); break;
        case 's': ok = has(r, 3) && set_items(r, r->stack.n - 2); break;
        case 'u': ok = MARKED(set_items(r, from)); break;
        case '\x90': ok = MARKED(add_items(r, from)); break;
        case 'q': ok = number(r, 1, &value) && put(r, value); break;
        case 'r': ok = number(r, 4, &value) && put(r, value); break;
        case 'p': ok = memo_line(r, &value) && put(r, value); break;
        case '\x94': ok = put(r, (uint64_t)r->memo_used); break;
        case 'h': ok = number(r, 1, &value) && get(r, value); break;
        case 'j': ok = number(r, 4, &value) && get(r, value); break;
        case 'g': ok = memo_line(r, &value) && get(r, value); break;
        case 'c': ok = global(r); break;
        case '\x93': ok = stack_global(r); break;
        case 'R': ok = reduce(r); break;
        case '\x81': ok = new_object(r, false); break;
        case '\x92': ok = new_object(r, true); break;
        case 'b': ok = build(r); break;
        case 'Q': ok = outside(r); break;
        default: ok = literal(r, (char)*code);
    }
#undef MARKED
    return ok ? 1 : -1;
}

static PyObject *unpickle(PyObject *module, PyObject *args) {
    reader r = {0};
    Py_buffer data;
    PyObject *out = NULL;
    int code = 1;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*Os:unpickle", &data, &r.maker, &r.encoding)) return NULL;
    r.begin = r.at = data.buf;
    r.end = r.begin + data.len;
    r.work = 10000 + 64 * (long long)data.len;
    for (unsigned steps = 1; code == 1; steps++) {
        code = step(&r);
        if (!(steps & 0xffff) && PyErr_CheckSignals()) code = -1;
    }
    if (!code) out = Py_BuildValue("(On)", top(&r, 0)->o, (Py_ssize_t)(r.at - r.begin));
    drop(&r.stack, 0);
    drop(&r.memo, 0);
    PyMem_Free(r.stack.v);
    PyMem_Free(r.memo.v);
    PyMem_Free(r.marks);
    PyBuffer_Release(&data);
    return out;
}

static PyMethodDef functions[] = {
    {"unpickle", unpickle, METH_VARARGS,
     "unpickle(data, maker, encoding)\n\nReads a pickle; returns (object, the byte at which the pickle ends). Makes "
     "containers, numbers and text itself, and\ncalls `maker` for all other objects (pydist/_unpickle.py). Errors: "
     "ValueError for a damaged pickle, and what the\nmaker raises."},
    {0}};

int pd_py_add_unpickle(PyObject *module) { return PyModule_AddFunctions(module, functions); }
