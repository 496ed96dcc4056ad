// A graph of ggml's as phases (phases.h). Part of ggml-cpu.c, which includes it behind what it calls.
#pragma once

/// Into how many parts a node is cut. Handing out what takes some microseconds takes longer than that.
static int coppice_count_parts(struct ggml_tensor * node, int n_threads) {
    switch (node->op) {
        case GGML_OP_CUSTOM:
            return ggml_get_n_tasks(node, n_threads);
        case GGML_OP_ADD:
        case GGML_OP_CONT:
        case GGML_OP_CPY:
        case GGML_OP_GET_ROWS:
        case GGML_OP_GLU:
        case GGML_OP_MUL:
        case GGML_OP_NORM:
        case GGML_OP_RMS_NORM:
        case GGML_OP_ROPE:
        case GGML_OP_SCALE:
        case GGML_OP_SET_ROWS:
        case GGML_OP_UNARY:
            return ggml_nelements(node) <= 4096 ? 1 : n_threads;
        default:
            return n_threads;
    }
}

/// Runs a part of a node, and of those behind it that are fused with it: returns how many.
static int coppice_compute(struct ggml_threadpool * tp, int node_n, int part, int n_parts) {
    const struct ggml_cplan * cplan = tp->cplan;
    struct ggml_compute_params params = {
        /*.ith        =*/ part,
        /*.nth        =*/ n_parts,
        /*.wsize      =*/ cplan->work_size,
        /*.wdata      =*/ cplan->work_data,
        /*.threadpool =*/ tp,
        /*.use_ref    =*/ cplan->use_ref,
    };
    const int n_fused = ggml_cpu_try_fuse_ops(tp->cgraph, node_n, &params, cplan);
    if (n_fused == 0) {
        ggml_compute_forward(&params, tp->cgraph->nodes[node_n]);
    }
    if (part == 0 && cplan->abort_callback && cplan->abort_callback(cplan->abort_callback_data)) {
        atomic_store_explicit(&tp->abort, node_n + n_fused + 1, memory_order_relaxed);
        tp->ec = GGML_STATUS_ABORTED;
    }
    return n_fused;
}

/// Goes on with node node_n: those that are too small for several threads are run here, until the next phase can be opened.
/// REQUIRES: no phase is open.
static void coppice_go_on(struct ggml_threadpool * tp, int node_n) {
    const struct ggml_cgraph * cgraph = tp->cgraph;
    for (; node_n < cgraph->n_nodes && atomic_load_explicit(&tp->abort, memory_order_relaxed) != node_n; node_n++) {
        struct ggml_tensor * node = cgraph->nodes[node_n];
        if (ggml_op_is_empty(node->op) || (node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) {
            continue;
        }
        const int n_parts = MIN(coppice_count_parts(node, tp->phases.n_active), COPPICE_MOST_PARTS);
        if (n_parts > 1) {
            coppice_open(&tp->phases, node_n, n_parts);
            return;
        }
        __atomic_store_n(&tp->phases.n_parts, 1, __ATOMIC_RELAXED);
        node_n += coppice_compute(tp, node_n, 0, 1);
    }
    coppice_open(&tp->phases, node_n, 0);
}

/// What a thread does: thread 0 until the graph is done, the others for as long as the pool lives.
static void coppice_work(struct ggml_threadpool * tp, int thread) {
    static _Thread_local struct coppice_place place;
    while (true) {
        const int part = coppice_claim(&tp->phases, thread, &place);
        if (part < 0) {
            return;
        }
        const int node_n  = tp->phases.node;
        const int n_fused = coppice_compute(tp, node_n, part, tp->phases.n_parts);
        if (coppice_finish(&tp->phases)) {
            coppice_go_on(tp, node_n + n_fused + 1);
        }
        coppice_rest(&tp->phases, &place);
    }
}

static void coppice_run_graph(struct ggml_threadpool * tp, int n_threads) {
    const bool others = coppice_take(&tp->phases, n_threads);
    coppice_go_on(tp, 0);
    if (others) {
        coppice_rouse(&tp->phases);
    }
    coppice_work(tp, 0);
}
