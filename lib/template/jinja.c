/* Executes the statements of a template. */
#include "template/jinja.h"

#include "template/jinja_eval.h"
#include "template/jinja_parse.h"
#include "template/jinja_print.h"

#include <stdlib.h>
#include <string.h>

/* The heap comes first: it owns the nodes, and the text lives as long as they do. */
struct lk_jinja {
    struct lk_jinja_heap heap;
    struct lk_jinja_node *body;
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static enum flow exec_body(struct lk_jinja_run *run, const struct lk_jinja_node *body);

/* ---- output ---- */

static void emit(struct lk_jinja_run *run, struct lk_jinja_text text) {
    if (text.len == 0) return;
    if (!run->out || text.len > run->cap_out - run->n_out) {
        size_t cap = (run->n_out + text.len) + (run->n_out + text.len) / 2 + 256;
        lk_jinja_count(run->heap, (ptrdiff_t)((cap - run->cap_out) * sizeof *run->out));
        lk_jinja_char *out = realloc(run->out, cap * sizeof *out);
        if (!out) lk_jinja_fail(run->heap, LK_E_NOMEM, "out of memory");
        run->out = out;
        run->cap_out = cap;
    }
    lk_jinja_work(run->heap, text.len / 16);
    memcpy(run->out + run->n_out, text.at, text.len * sizeof *text.at);
    run->n_out += text.len;
}

/* The output of a body as a text, removed from the output. */
static struct lk_jinja_text capture(struct lk_jinja_run *run, const struct lk_jinja_node *body) {
    size_t start = run->n_out, n = 0;
    exec_body(run, body);
    n = run->n_out - start;
    lk_jinja_char *at = lk_jinja_alloc(run->heap, n * sizeof *at);
    if (n) memcpy(at, run->out + start, n * sizeof *at);
    run->n_out = start;
    return (struct lk_jinja_text){at, n};
}

static struct lk_jinja_value call_macro(struct lk_jinja_run *run,
                                        const struct lk_jinja_macro *macro,
                                        const struct lk_jinja_args *args) {
    struct lk_jinja_scope *outer = run->scope;
    size_t i = 0;
    lk_jinja_enter(run->heap);
    run->scope = lk_jinja_scope_new(run, macro->scope);
    for (const struct lk_jinja_node *p = macro->node->list; p; p = p->next, i++) {
        struct lk_jinja_value value = lk_jinja_undefined();
        if (i < args->n)
            value = args->at[i];
        else if (args->named)
            value = lk_jinja_get(run->heap, args->named, lk_jinja_string(p->name));
        if (value.kind == LK_JINJA_UNDEFINED && p->a) value = lk_jinja_eval(run, p->a);
        lk_jinja_set(run->heap, run->scope->variables, lk_jinja_string(p->name), value);
    }
    struct lk_jinja_value out = lk_jinja_string(capture(run, macro->node->b));
    run->scope = outer;
    lk_jinja_leave(run->heap);
    return out;
}

/* ---- statements ---- */

static void assign(struct lk_jinja_run *run, const struct lk_jinja_node *target,
                   struct lk_jinja_value value) {
    if (target->op == LK_NODE_NAME) {
        lk_jinja_set(run->heap, run->scope->variables, lk_jinja_string(target->name), value);
        return;
    }
    struct lk_jinja_value object = lk_jinja_eval(run, target->a),
                          key = lk_jinja_string(target->name);
    if (object.kind != LK_JINJA_DICT)
        lk_jinja_fail(run->heap, LK_E_FORMAT, "cannot set an attribute of %s",
                      lk_jinja_kind_name(object));
    if (target->op == LK_NODE_ITEM) key = lk_jinja_eval(run, target->b);
    run->heap->n_change++;
    lk_jinja_set(run->heap, object.dict, key, value);
}

/* Assign to one target, or the elements of a list to several ones. */
static void assign_all(struct lk_jinja_run *run, const struct lk_jinja_node *targets,
                       struct lk_jinja_value value) {
    if (!targets->next) {
        assign(run, targets, value);
        return;
    }
    const struct lk_jinja_list *list = lk_jinja_elements(run->heap, value);
    size_t i = 0;
    for (; targets && i < list->n; targets = targets->next) assign(run, targets, list->at[i++]);
    if (targets || i < list->n)
        lk_jinja_fail(run->heap, LK_E_FORMAT, "cannot unpack %zu values", list->n);
}

/* The elements that the loop's condition selects. */
static struct lk_jinja_list *select_elements(struct lk_jinja_run *run,
                                             const struct lk_jinja_node *node,
                                             struct lk_jinja_list *list) {
    struct lk_jinja_value out = lk_jinja_list(run->heap, 0);
    struct lk_jinja_scope *outer = run->scope;
    run->scope = lk_jinja_scope_new(run, outer);
    for (size_t i = 0; i < list->n; i++) {
        struct lk_jinja_value value = list->at[i];
        assign_all(run, node->list, value);
        if (lk_jinja_truth(lk_jinja_eval(run, node->d))) lk_jinja_push(run->heap, out.list, value);
    }
    run->scope = outer;
    return out.list;
}

static enum flow exec_for(struct lk_jinja_run *run, const struct lk_jinja_node *node) {
    struct lk_jinja_heap *heap = run->heap;
    struct lk_jinja_list *list = lk_jinja_elements(heap, lk_jinja_eval(run, node->a));
    if (node->d) list = select_elements(run, node, list);
    if (list->n == 0) return node->c ? exec_body(run, node->c) : FLOW_ON;
    /* The body may keep `loop` in an object that lives longer than this function's frame. */
    struct lk_jinja_loop *loop = lk_jinja_alloc(heap, sizeof *loop);
    *loop = (struct lk_jinja_loop){.list = *list};
    struct lk_jinja_scope *outer = run->scope;
    const struct lk_jinja_value loop_value = {.kind = LK_JINJA_LOOP, .loop = loop};
    for (size_t i = 0; i < loop->list.n; i++) {
        loop->index = i; /* stays that of the last round, as in Python */
        struct lk_jinja_mark mark = lk_jinja_mark(heap);
        uint64_t n_change = heap->n_change;
        lk_jinja_work(heap, 1);
        run->scope = lk_jinja_scope_new(run, outer);
        lk_jinja_set(heap, run->scope->variables, lk_jinja_string(run->loop_name), loop_value);
        assign_all(run, node->list, loop->list.at[i]);
        enum flow flow = exec_body(run, node->b);
        run->scope = outer;
        if (heap->n_change == n_change) lk_jinja_release(heap, mark);
        if (flow == FLOW_BREAK) break;
    }
    return FLOW_ON;
}

static struct lk_jinja_value filter_captured(struct lk_jinja_run *run,
                                             const struct lk_jinja_node *node) {
    struct lk_jinja_scope *outer = run->scope;
    struct lk_jinja_value outer_text = run->captured;
    run->scope = lk_jinja_scope_new(run, outer);
    struct lk_jinja_text text = capture(run, node->b);
    run->scope = outer;
    run->captured = lk_jinja_string(text);
    struct lk_jinja_value out = lk_jinja_eval(run, node->a);
    run->captured = outer_text;
    return out;
}

static void exec_output(struct lk_jinja_run *run, const struct lk_jinja_node *node) {
    struct lk_jinja_mark mark = lk_jinja_mark(run->heap);
    uint64_t n_change = run->heap->n_change;
    emit(run, lk_jinja_str(run->heap, lk_jinja_eval(run, node->a)));
    if (run->heap->n_change == n_change) lk_jinja_release(run->heap, mark);
}

static enum flow exec_statement(struct lk_jinja_run *run, const struct lk_jinja_node *node) {
    run->heap->line = node->line;
    switch (node->op) {
    case LK_NODE_TEXT: emit(run, node->value.text); return FLOW_ON;
    case LK_NODE_OUTPUT: exec_output(run, node); return FLOW_ON;
    case LK_NODE_IF:
        while (node->op == LK_NODE_IF) {
            if (lk_jinja_truth(lk_jinja_eval(run, node->a))) return exec_body(run, node->b);
            if (!node->c || node->c->op != LK_NODE_IF || node->c->next) break;
            node = node->c;
        }
        return node->c ? exec_body(run, node->c) : FLOW_ON;
    case LK_NODE_FOR: return exec_for(run, node);
    case LK_NODE_SET: assign_all(run, node->list, lk_jinja_eval(run, node->a)); return FLOW_ON;
    case LK_NODE_SET_BLOCK: assign_all(run, node->list, filter_captured(run, node)); return FLOW_ON;
    case LK_NODE_FILTER_BLOCK:
        emit(run, lk_jinja_str(run->heap, filter_captured(run, node)));
        return FLOW_ON;
    case LK_NODE_MACRO: {
        struct lk_jinja_macro *macro = lk_jinja_alloc(run->heap, sizeof *macro);
        *macro = (struct lk_jinja_macro){node, run->scope};
        struct lk_jinja_value value = {.kind = LK_JINJA_MACRO, .macro = macro};
        lk_jinja_set(run->heap, run->scope->variables, lk_jinja_string(node->name), value);
        return FLOW_ON;
    }
    case LK_NODE_BLOCK: return exec_body(run, node->b);
    case LK_NODE_BREAK: return FLOW_BREAK;
    case LK_NODE_CONTINUE: return FLOW_CONTINUE;
    default: lk_jinja_fail(run->heap, LK_E_UNSUPPORTED, "unknown statement");
    }
}

static enum flow exec_body(struct lk_jinja_run *run, const struct lk_jinja_node *body) {
    enum flow flow = FLOW_ON;
    lk_jinja_enter(run->heap);
    for (; body && flow == FLOW_ON; body = body->next) flow = exec_statement(run, body);
    lk_jinja_leave(run->heap);
    return flow;
}

/* ---- interface ---- */

static lk_status report(const struct lk_jinja_heap *heap, lk_err *err) {
    if (heap->status == LK_E_NOMEM)
        return lk_fail(err, LK_E_NOMEM, "out of memory: cannot format a conversation");
    return lk_fail(err, heap->status, "the model's chat template, line %zu: %s", heap->line,
                   heap->error);
}

lk_status lk_jinja_parse(struct lk_jinja **out, const char *text, size_t len, lk_err *err) {
    if (len > LK_JINJA_MAX_TEMPLATE)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the model's chat template has %zu bytes; the maximum is %d", len,
                       LK_JINJA_MAX_TEMPLATE);
    struct lk_jinja *volatile jinja = malloc(sizeof *jinja);
    if (!jinja) return lk_fail(err, LK_E_NOMEM, "out of memory: cannot parse a chat template");
    lk_jinja_heap_init(&jinja->heap, (4 << 20) + 256 * len, (1 << 20) + 64 * len);
    if (setjmp(jinja->heap.on_error)) {
        lk_status status = report(&jinja->heap, err);
        lk_jinja_free(jinja);
        return status;
    }
    char *copy = lk_jinja_alloc(&jinja->heap, len + 1);
    memcpy(copy, text, len);
    jinja->body = lk_jinja_parse_text(&jinja->heap, copy, len);
    *out = jinja;
    return LK_OK;
}

void lk_jinja_free(struct lk_jinja *jinja) {
    if (!jinja) return;
    lk_jinja_heap_free(&jinja->heap);
    free(jinja);
}

/* Inputs are held twice as wide as they are, as variables, as the output, and as what filters make
 * of the largest of them. */
uint64_t lk_jinja_max_bytes(uint64_t n_input) { return (2 << 20) + 16 * n_input; }

lk_status lk_jinja_render(const struct lk_jinja *jinja, uint64_t n_input, lk_jinja_setup *setup,
                          void *user, lk_jinja_char **out, size_t *n_out, lk_err *err) {
    struct lk_jinja_heap heap;
    struct lk_jinja_run run = {.heap = &heap, .call_macro = call_macro};
    struct lk_jinja_run *volatile r = &run;
    lk_status status = LK_OK;
    lk_jinja_heap_init(&heap, lk_jinja_max_bytes(n_input), (2 << 20) + 16 * n_input);
    if (setjmp(heap.on_error)) {
        status = report(&heap, err);
        free(r->out);
        lk_jinja_heap_free(&heap);
        return status;
    }
    run.loop_name = lk_jinja_text_of(&heap, "loop", 4, LK_FROM_TEMPLATE);
    run.scope = lk_jinja_scope_new(&run, NULL);
    setup(&heap, run.scope->variables, user);
    exec_body(&run, jinja->body);
    if (!run.out) emit(&run, lk_jinja_text_of(&heap, " ", 1, 0)), run.n_out = 0;
    lk_jinja_heap_free(&heap);
    *out = run.out;
    *n_out = run.n_out;
    return LK_OK;
}
