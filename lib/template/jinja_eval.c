/* Evaluates expressions of a template. */
#include "template/jinja_eval.h"

#include "template/jinja_filters.h"
#include "template/jinja_methods.h"
#include "template/jinja_print.h"
#include "template/jinja_text_ops.h"

#include <math.h>
#include <string.h>

struct lk_jinja_scope *lk_jinja_scope_new(struct lk_jinja_run *run, struct lk_jinja_scope *outer) {
    struct lk_jinja_scope *scope = lk_jinja_alloc(run->heap, sizeof *scope);
    *scope = (struct lk_jinja_scope){outer, lk_jinja_dict(run->heap, 0).dict};
    return scope;
}

/* ---- names and members ---- */

static struct lk_jinja_value find_variable(struct lk_jinja_run *run, struct lk_jinja_text name) {
    const struct lk_jinja_value key = lk_jinja_string(name);
    for (const struct lk_jinja_scope *s = run->scope; s; s = s->outer) {
        struct lk_jinja_value value = lk_jinja_get(run->heap, s->variables, key);
        if (value.kind != LK_JINJA_UNDEFINED) return value;
    }
    struct lk_jinja_value function = {.kind = LK_JINJA_FUNCTION};
    function.function = lk_jinja_function_name(name);
    return function.function ? function : lk_jinja_undefined();
}

static struct lk_jinja_value loop_attribute(struct lk_jinja_heap *heap,
                                            const struct lk_jinja_loop *loop,
                                            struct lk_jinja_text name) {
    size_t i = loop->index, n = loop->list.n;
    if (lk_jinja_is(name, "index")) return lk_jinja_int((int64_t)i + 1);
    if (lk_jinja_is(name, "index0")) return lk_jinja_int((int64_t)i);
    if (lk_jinja_is(name, "revindex")) return lk_jinja_int((int64_t)(n - i));
    if (lk_jinja_is(name, "revindex0")) return lk_jinja_int((int64_t)(n - i - 1));
    if (lk_jinja_is(name, "first")) return lk_jinja_bool(i == 0);
    if (lk_jinja_is(name, "last")) return lk_jinja_bool(i + 1 == n);
    if (lk_jinja_is(name, "length")) return lk_jinja_int((int64_t)n);
    if (lk_jinja_is(name, "depth")) return lk_jinja_int(1); /* of calls of itself */
    if (lk_jinja_is(name, "depth0")) return lk_jinja_int(0);
    if (lk_jinja_is(name, "previtem")) return i ? loop->list.at[i - 1] : lk_jinja_undefined();
    if (lk_jinja_is(name, "nextitem"))
        return i + 1 < n ? loop->list.at[i + 1] : lk_jinja_undefined();
    lk_jinja_fail(heap, LK_E_UNSUPPORTED, "'loop' does not have this attribute");
}

static struct lk_jinja_value bind_method(struct lk_jinja_heap *heap, struct lk_jinja_value object,
                                         struct lk_jinja_text name) {
    struct lk_jinja_method *method = lk_jinja_alloc(heap, sizeof *method);
    *method = (struct lk_jinja_method){object, name};
    return (struct lk_jinja_value){.kind = LK_JINJA_METHOD, .method = method};
}

/* a.name: a method, or the value of a key. */
static struct lk_jinja_value get_attribute(struct lk_jinja_heap *heap, struct lk_jinja_value object,
                                           struct lk_jinja_text name) {
    if (lk_jinja_has_method(object, name)) return bind_method(heap, object, name);
    if (object.kind == LK_JINJA_DICT) return lk_jinja_get(heap, object.dict, lk_jinja_string(name));
    if (object.kind == LK_JINJA_LOOP) return loop_attribute(heap, object.loop, name);
    return lk_jinja_undefined();
}

/* a[b]: the value of a key or index; else a method. */
static struct lk_jinja_value get_item(struct lk_jinja_heap *heap, struct lk_jinja_value object,
                                      struct lk_jinja_value key) {
    if (object.kind == LK_JINJA_DICT) {
        struct lk_jinja_value value = lk_jinja_get(heap, object.dict, key);
        if (value.kind != LK_JINJA_UNDEFINED || key.kind != LK_JINJA_STRING) return value;
        return lk_jinja_contains(heap, object, key) || !lk_jinja_has_method(object, key.text)
                   ? value
                   : bind_method(heap, object, key.text);
    }
    if (key.kind == LK_JINJA_STRING && object.kind != LK_JINJA_UNDEFINED)
        return get_attribute(heap, object, key.text);
    if (key.kind != LK_JINJA_INT) return lk_jinja_undefined();
    int64_t i = key.integer;
    if (object.kind == LK_JINJA_LIST) {
        int64_t n = (int64_t)object.list->n;
        if (i < 0) i += n;
        return i >= 0 && i < n ? object.list->at[i] : lk_jinja_undefined();
    }
    if (object.kind != LK_JINJA_STRING) return lk_jinja_undefined();
    int64_t n = (int64_t)lk_jinja_n_code_point(heap, object.text);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return lk_jinja_undefined();
    size_t at = lk_jinja_code_point_at(heap, object.text, (size_t)i);
    struct lk_jinja_text rest = lk_jinja_slice(object.text, at, object.text.len);
    return lk_jinja_string(lk_jinja_slice(rest, 0, lk_jinja_code_point_at(heap, rest, 1)));
}

/* An end of a slice, in [low, high]. */
static int64_t slice_end(struct lk_jinja_run *run, const struct lk_jinja_node *node, int64_t n,
                         int64_t otherwise, int64_t low, int64_t high) {
    if (!node) return otherwise;
    struct lk_jinja_value value = lk_jinja_eval(run, node);
    if (value.kind == LK_JINJA_NONE || value.kind == LK_JINJA_UNDEFINED) return otherwise;
    if (value.kind != LK_JINJA_INT) lk_jinja_fail(run->heap, LK_E_FORMAT, "a slice needs integers");
    int64_t i = value.integer < 0 ? value.integer + n : value.integer;
    return i < low ? low : i > high ? high : i;
}

/* a[b:c:d] */
static struct lk_jinja_value eval_slice(struct lk_jinja_run *run,
                                        const struct lk_jinja_node *node) {
    struct lk_jinja_heap *heap = run->heap;
    struct lk_jinja_value object = lk_jinja_eval(run, node->a);
    bool is_string = object.kind == LK_JINJA_STRING;
    if (object.kind == LK_JINJA_UNDEFINED) return object;
    if (!is_string && object.kind != LK_JINJA_LIST)
        lk_jinja_fail(heap, LK_E_FORMAT, "cannot slice %s", lk_jinja_kind_name(object));
    int64_t n =
        is_string ? (int64_t)lk_jinja_n_code_point(heap, object.text) : (int64_t)object.list->n;
    int64_t step = slice_end(run, node->d, 0, 1, -n - 1, n + 1);
    if (step == 0) lk_jinja_fail(heap, LK_E_FORMAT, "the step of a slice is 0");
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1,
            from = slice_end(run, node->b, n, step > 0 ? 0 : n - 1, low, high),
            to = slice_end(run, node->c, n, step > 0 ? n : -1, low, high);
    if (is_string && step == 1) {
        size_t start = lk_jinja_code_point_at(heap, object.text, (size_t)from),
               end = lk_jinja_code_point_at(heap, object.text, (size_t)to);
        return lk_jinja_string(lk_jinja_slice(object.text, start, end));
    }
    struct lk_jinja_list *list = lk_jinja_elements(heap, object);
    struct lk_jinja_value out = lk_jinja_list(heap, 0);
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        lk_jinja_push(heap, out.list, list->at[i]);
    out.list->is_tuple = list->is_tuple;
    if (!is_string) return out;
    return lk_jinja_string(lk_jinja_join_list(heap, out.list, (struct lk_jinja_text){0}));
}

/* ---- calls ---- */

/* Evaluate arguments. `first`: goes before them; undefined kinds are passed too. */
static struct lk_jinja_args eval_args(struct lk_jinja_run *run, const struct lk_jinja_node *node,
                                      const struct lk_jinja_value *first) {
    struct lk_jinja_heap *heap = run->heap;
    struct lk_jinja_value at = lk_jinja_list(heap, 4);
    struct lk_jinja_dict *named = NULL;
    if (first) lk_jinja_push(heap, at.list, *first);
    for (; node; node = node->next) {
        if (node->op == LK_NODE_NAMED) {
            if (!named) named = lk_jinja_dict(heap, 0).dict;
            lk_jinja_set(heap, named, lk_jinja_string(node->name), lk_jinja_eval(run, node->a));
        } else if (node->op == LK_NODE_SPREAD) {
            const struct lk_jinja_list *more = lk_jinja_elements(heap, lk_jinja_eval(run, node->a));
            for (size_t i = 0; i < more->n; i++) lk_jinja_push(heap, at.list, more->at[i]);
        } else {
            lk_jinja_push(heap, at.list, lk_jinja_eval(run, node));
        }
    }
    return (struct lk_jinja_args){at.list->at, at.list->n, named};
}

static struct lk_jinja_value eval_call(struct lk_jinja_run *run, const struct lk_jinja_node *node) {
    struct lk_jinja_value callee = lk_jinja_eval(run, node->a);
    struct lk_jinja_args args = eval_args(run, node->list, NULL);
    if (callee.kind == LK_JINJA_METHOD)
        return lk_jinja_call_method(run->heap, callee.method, &args);
    if (callee.kind == LK_JINJA_FUNCTION)
        return lk_jinja_call_function(run->heap, callee.function, &args);
    if (callee.kind == LK_JINJA_MACRO) return run->call_macro(run, callee.macro, &args);
    lk_jinja_fail(run->heap, LK_E_FORMAT, "cannot call %s", lk_jinja_kind_name(callee));
}

/* ---- arithmetic ---- */

static struct lk_jinja_value real_value(double real) {
    return (struct lk_jinja_value){.kind = LK_JINJA_FLOAT, .real = real};
}

static int64_t as_integer(struct lk_jinja_value value) {
    return value.kind == LK_JINJA_BOOL ? value.yes : value.integer;
}

static struct lk_jinja_value calculate_integers(struct lk_jinja_heap *heap,
                                                enum lk_jinja_node_kind op, int64_t a, int64_t b) {
    int64_t out = 0;
    bool overflow = false;
    if (op == LK_NODE_ADD) overflow = __builtin_add_overflow(a, b, &out);
    if (op == LK_NODE_SUBTRACT) overflow = __builtin_sub_overflow(a, b, &out);
    if (op == LK_NODE_MULTIPLY) overflow = __builtin_mul_overflow(a, b, &out);
    if (op == LK_NODE_FLOOR_DIVIDE || op == LK_NODE_REMAINDER) {
        if (b == 0) lk_jinja_fail(heap, LK_E_FORMAT, "division by zero");
        overflow = a == INT64_MIN && b == -1;
        int64_t quotient = overflow ? 0 : a / b, rest = overflow ? 0 : a % b;
        if (rest && (rest < 0) != (b < 0)) quotient--, rest += b;
        out = op == LK_NODE_REMAINDER ? rest : quotient;
    }
    if (overflow) lk_jinja_fail(heap, LK_E_FORMAT, "an integer is too large");
    return lk_jinja_int(out);
}

static struct lk_jinja_value calculate(struct lk_jinja_heap *heap, enum lk_jinja_node_kind op,
                                       struct lk_jinja_value a, struct lk_jinja_value b) {
    double x = lk_jinja_real(a), y = lk_jinja_real(b);
    bool exact = a.kind != LK_JINJA_FLOAT && b.kind != LK_JINJA_FLOAT;
    if (op == LK_NODE_POWER) {
        double power = pow(x, y);
        return exact && y >= 0 && fabs(power) < 9e15 ? lk_jinja_int((int64_t)power)
                                                     : real_value(power);
    }
    if (op == LK_NODE_DIVIDE || !exact) {
        bool divides =
            op == LK_NODE_DIVIDE || op == LK_NODE_FLOOR_DIVIDE || op == LK_NODE_REMAINDER;
        if (divides && y == 0) lk_jinja_fail(heap, LK_E_FORMAT, "division by zero");
        if (op == LK_NODE_ADD) return real_value(x + y);
        if (op == LK_NODE_SUBTRACT) return real_value(x - y);
        if (op == LK_NODE_MULTIPLY) return real_value(x * y);
        if (op == LK_NODE_DIVIDE) return real_value(x / y);
        if (op == LK_NODE_FLOOR_DIVIDE) return real_value(floor(x / y));
        return real_value(x - y * floor(x / y));
    }
    return calculate_integers(heap, op, as_integer(a), as_integer(b));
}

static struct lk_jinja_value repeat(struct lk_jinja_heap *heap, struct lk_jinja_text text,
                                    int64_t n) {
    struct lk_jinja_builder out = {.heap = heap};
    for (int64_t i = 0; i < n && text.len; i++) {
        lk_jinja_work(heap, 1);
        lk_jinja_add(&out, text);
    }
    return lk_jinja_string(lk_jinja_built(&out));
}

static struct lk_jinja_value add_lists(struct lk_jinja_heap *heap, const struct lk_jinja_list *a,
                                       const struct lk_jinja_list *b) {
    struct lk_jinja_value out = lk_jinja_list(heap, a->n + b->n);
    for (size_t i = 0; i < a->n; i++) lk_jinja_push(heap, out.list, a->at[i]);
    for (size_t i = 0; i < b->n; i++) lk_jinja_push(heap, out.list, b->at[i]);
    out.list->is_tuple = a->is_tuple;
    return out;
}

/* A value that is missing is an empty text next to a text. */
static bool is_text(struct lk_jinja_value value) {
    return value.kind == LK_JINJA_STRING || value.kind == LK_JINJA_UNDEFINED ||
           value.kind == LK_JINJA_NONE;
}

static struct lk_jinja_value eval_binary(struct lk_jinja_run *run,
                                         const struct lk_jinja_node *node) {
    struct lk_jinja_heap *heap = run->heap;
    struct lk_jinja_value a = lk_jinja_eval(run, node->a), b = lk_jinja_eval(run, node->b);
    bool a_is_string = a.kind == LK_JINJA_STRING, b_is_string = b.kind == LK_JINJA_STRING;
    heap->line = node->line;
    if (node->op == LK_NODE_JOIN)
        return lk_jinja_string(lk_jinja_concat(heap, lk_jinja_str(heap, a), lk_jinja_str(heap, b)));
    if (lk_jinja_is_number(a) && lk_jinja_is_number(b)) return calculate(heap, node->op, a, b);
    if (node->op == LK_NODE_ADD && (a_is_string || b_is_string) && is_text(a) && is_text(b))
        return lk_jinja_string(lk_jinja_concat(heap,
                                               a_is_string ? a.text : (struct lk_jinja_text){0},
                                               b_is_string ? b.text : (struct lk_jinja_text){0}));
    if (node->op == LK_NODE_ADD && a.kind == LK_JINJA_LIST && b.kind == LK_JINJA_LIST)
        return add_lists(heap, a.list, b.list);
    if (node->op == LK_NODE_MULTIPLY && a_is_string && b.kind == LK_JINJA_INT)
        return repeat(heap, a.text, b.integer);
    if (node->op == LK_NODE_MULTIPLY && b_is_string && a.kind == LK_JINJA_INT)
        return repeat(heap, b.text, a.integer);
    if (node->op == LK_NODE_REMAINDER && a_is_string) {
        struct lk_jinja_args args = {&b, 1, NULL};
        if (b.kind == LK_JINJA_LIST && b.list->is_tuple)
            args = (struct lk_jinja_args){b.list->at, b.list->n, NULL};
        return lk_jinja_string(lk_jinja_percent(heap, a.text, &args));
    }
    lk_jinja_fail(heap, LK_E_FORMAT, "cannot calculate with %s and %s", lk_jinja_kind_name(a),
                  lk_jinja_kind_name(b));
}

static struct lk_jinja_value eval_comparison(struct lk_jinja_run *run,
                                             const struct lk_jinja_node *node) {
    struct lk_jinja_heap *heap = run->heap;
    struct lk_jinja_value a = lk_jinja_eval(run, node->a), b = lk_jinja_eval(run, node->b);
    heap->line = node->line;
    switch (node->op) {
    case LK_NODE_EQUAL: return lk_jinja_bool(lk_jinja_equal(heap, a, b));
    case LK_NODE_NOT_EQUAL: return lk_jinja_bool(!lk_jinja_equal(heap, a, b));
    case LK_NODE_LESS: return lk_jinja_bool(lk_jinja_compare(heap, a, b) < 0);
    case LK_NODE_LESS_EQUAL: return lk_jinja_bool(lk_jinja_compare(heap, a, b) <= 0);
    case LK_NODE_GREATER: return lk_jinja_bool(lk_jinja_compare(heap, a, b) > 0);
    case LK_NODE_GREATER_EQUAL: return lk_jinja_bool(lk_jinja_compare(heap, a, b) >= 0);
    case LK_NODE_IN: return lk_jinja_bool(lk_jinja_contains(heap, b, a));
    default: return lk_jinja_bool(!lk_jinja_contains(heap, b, a));
    }
}

/* ---- all ---- */

static struct lk_jinja_value negate(struct lk_jinja_heap *heap, struct lk_jinja_value value) {
    if (value.kind == LK_JINJA_FLOAT) return real_value(-value.real);
    if (!lk_jinja_is_number(value))
        lk_jinja_fail(heap, LK_E_FORMAT, "cannot negate %s", lk_jinja_kind_name(value));
    return calculate_integers(heap, LK_NODE_SUBTRACT, 0, as_integer(value));
}

static struct lk_jinja_value eval_display(struct lk_jinja_run *run,
                                          const struct lk_jinja_node *node) {
    struct lk_jinja_value out;
    const struct lk_jinja_node *at = node->list;
    if (node->op == LK_NODE_DICT) {
        out = lk_jinja_dict(run->heap, 0);
        for (; at; at = at->next->next) {
            struct lk_jinja_value key = lk_jinja_eval(run, at);
            lk_jinja_set(run->heap, out.dict, key, lk_jinja_eval(run, at->next));
        }
        return out;
    }
    out = lk_jinja_list(run->heap, 0);
    for (; at; at = at->next) lk_jinja_push(run->heap, out.list, lk_jinja_eval(run, at));
    out.list->is_tuple = node->op == LK_NODE_TUPLE;
    return out;
}

static struct lk_jinja_value eval_node(struct lk_jinja_run *run, const struct lk_jinja_node *node) {
    struct lk_jinja_heap *heap = run->heap;
    struct lk_jinja_value a;
    struct lk_jinja_args args;
    switch (node->op) {
    case LK_NODE_CONSTANT: return node->value;
    case LK_NODE_CAPTURED: return run->captured;
    case LK_NODE_NAME: return find_variable(run, node->name);
    case LK_NODE_LIST:
    case LK_NODE_TUPLE:
    case LK_NODE_DICT: return eval_display(run, node);
    case LK_NODE_CONDITION:
        if (lk_jinja_truth(lk_jinja_eval(run, node->b))) return lk_jinja_eval(run, node->a);
        return node->c ? lk_jinja_eval(run, node->c) : lk_jinja_undefined();
    case LK_NODE_AND:
        a = lk_jinja_eval(run, node->a);
        return lk_jinja_truth(a) ? lk_jinja_eval(run, node->b) : a;
    case LK_NODE_OR:
        a = lk_jinja_eval(run, node->a);
        return lk_jinja_truth(a) ? a : lk_jinja_eval(run, node->b);
    case LK_NODE_NOT: return lk_jinja_bool(!lk_jinja_truth(lk_jinja_eval(run, node->a)));
    case LK_NODE_NEGATE: return negate(heap, lk_jinja_eval(run, node->a));
    case LK_NODE_ATTRIBUTE: return get_attribute(heap, lk_jinja_eval(run, node->a), node->name);
    case LK_NODE_ITEM:
        a = lk_jinja_eval(run, node->a);
        return get_item(heap, a, lk_jinja_eval(run, node->b));
    case LK_NODE_SLICE: return eval_slice(run, node);
    case LK_NODE_CALL: return eval_call(run, node);
    case LK_NODE_FILTER:
        a = lk_jinja_eval(run, node->a);
        args = eval_args(run, node->list, &a);
        heap->line = node->line;
        return lk_jinja_filter(heap, node->name, &args);
    case LK_NODE_TEST:
        a = lk_jinja_eval(run, node->a);
        args = eval_args(run, node->list, &a);
        return lk_jinja_bool(lk_jinja_test(heap, node->name, &args));
    default:
        if (node->op >= LK_NODE_ADD && node->op <= LK_NODE_JOIN) return eval_binary(run, node);
        if (node->op >= LK_NODE_EQUAL && node->op <= LK_NODE_NOT_IN)
            return eval_comparison(run, node);
        lk_jinja_fail(heap, LK_E_FORMAT, "unexpected expression");
    }
}

struct lk_jinja_value lk_jinja_eval(struct lk_jinja_run *run, const struct lk_jinja_node *node) {
    lk_jinja_enter(run->heap);
    struct lk_jinja_value value = eval_node(run, node);
    lk_jinja_leave(run->heap);
    return value;
}
