/* Attention jobs of bench/gpu/kernels.cpp:
 *
 *     attend heads=32/8 d=128 batch=8 rows=32768 queries=1 segments=rot3/rot2:32768 [splits=16]
 *
 * The kernel and its splits are those that the device module plans (cuda/attend_launch.h), or with
 * `splits`, so many blocks share the rows of a KV head. */
#include "cuda/attend_launch.h"
#include "gpu/jobs.h"
#include "gpu/rows.h"

namespace {

/* Launches of a problem's layers. */
struct launches {
    const attend_problem &p;
    attend_plan plan;
    std::unique_ptr<buffer> scratch, ticket;
    std::string why; /* there is no plan; empty: there is one */

    launches(bench_card &card, const attend_problem &problem, int n_split) : p(problem) {
        if (!attend_plan_make(&card.is, p.calls.data(), p.batch, &plan)) {
            why = "no kernel for this shape";
            return;
        }
        if (n_split) {
            int cluster = plan.entry->cluster;
            n_split = (n_split + cluster - 1) / cluster * cluster;
            plan.scratch_bytes = plan.scratch_bytes / (size_t)plan.launch.n_split * (size_t)n_split;
            plan.launch.n_split = n_split;
        }
        scratch.reset(new buffer(plan.scratch_bytes));
        ticket.reset(new buffer(plan.ticket_bytes));
        if (!scratch->at() || !ticket->at())
            why = "out of memory";
        else
            card.fill(*ticket, 0);
        plan.launch.scratch = scratch->at(), plan.launch.ticket = ticket->at();
    }
    int run(bench_card &card, int layer) {
        plan.launch.call = p.call_at(layer);
        return attend_run(&plan, card.stream);
    }
};

} // namespace

answer run_attend(bench_card &card, const job &j) {
    attend_problem p;
    std::string why = make_problem(card, j, p);
    if (!why.empty()) return skipped(why);
    launches l(card, p, j.number("splits"));
    if (!l.why.empty()) return skipped(l.why);
    answer a = timed(card, p.layers, [&](int layer) { return l.run(card, layer); });
    printf("%s: %d columns, %d warps, clusters of %d, %d splits: %.2f us\n", j.line.c_str(),
           l.plan.entry->columns, l.plan.entry->warps, l.plan.entry->cluster, l.plan.launch.n_split,
           a.us);
    a.bytes = p.bytes;
    if (j.emulate()) {
        std::vector<float> out(p.q.size());
        card.receive(out.data(), p.out->at(), out.size() * sizeof(float));
        a.nmse = attend_error(p, out);
    }
    return a;
}
