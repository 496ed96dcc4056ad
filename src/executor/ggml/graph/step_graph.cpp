#include "executor/ggml/graph/step_graph.h"

#include <algorithm>
#include <cmath>

#include "executor/ggml/graph/attention.h"
#include "executor/ggml/graph/state_step.h"

namespace coppice::executor {

namespace {

constexpr std::size_t kNodesPerLayer = 112;  // attention's not counted

int round_up(int n, int unit) {
  return (n + unit - 1) / unit * unit;
}

/// Rows of a matrix product cost about the same each, so few are wasted.
int padded_rows(int n) {
  return n <= 16 ? n : n <= 64 ? round_up(n, 4) : round_up(n, 32);
}

template <class T>
T* data(ggml_tensor* t) {
  return static_cast<T*>(t->data);
}

}  // namespace

StepShape shape_of(const Batch& batch, const Attention& attention) {
  const StepShape exact{batch.n_rows(), static_cast<int>(batch.logit_rows.size()),
                        static_cast<int>(batch.hidden_rows.size()), !batch.embeddings.empty(),
                        !batch.hidden_rows.empty()};
  if (!attention.reuses_graphs()) return exact;
  const int n_rows = padded_rows(exact.n_rows);
  const auto padded = [n_rows](int n) { return std::min(padded_rows(n), n_rows); };
  return {n_rows, padded(exact.n_logits), padded(exact.n_hidden), exact.embeds, exact.alike};
}

StepGraph::StepGraph(const DecoderParts& parts, const Batch& batch, const StepShape& shape)
    : parts_(parts), shape_(shape) {
  const std::size_t n_nodes =
      parts.spec->layers.size() * (kNodesPerLayer + parts.attention->nodes_per_layer(batch)) + 64;
  context_ = make_context(n_nodes, n_nodes);
  ggml_context* c = context_.get();
  graph_ = ggml_new_graph_custom(c, n_nodes, false);
  const auto input = [c](ggml_type type, int n) {
    ggml_tensor* t = ggml_new_tensor_1d(c, type, n);
    ggml_set_input(t);
    return t;
  };
  inputs_.tokens = input(GGML_TYPE_I32, shape.n_rows);
  if (shape.embeds) {
    inputs_.embeddings = ggml_new_tensor_2d(c, GGML_TYPE_F32, parts.spec->embedding_size(), shape.n_rows);
    ggml_set_input(inputs_.embeddings);
    inputs_.sources = input(GGML_TYPE_I32, shape.n_rows);
  }
  inputs_.positions = input(GGML_TYPE_I32, (parts.spec->has_sections() ? 4 : 1) * shape.n_rows);
  ggml_build_forward_expand(graph_, inputs_.positions);  // gets its memory even where no layer turns
  if (shape.n_outputs() > 0) inputs_.output_rows = input(GGML_TYPE_I32, shape.n_outputs());
  inputs_.n_logits = shape.n_logits;
  inputs_.alike = shape.alike;
  if (parts.spec->temperature.scale != 0) {
    inputs_.temperatures = ggml_new_tensor_2d(c, GGML_TYPE_F32, 1, shape.n_rows);
    ggml_set_input(inputs_.temperatures);
  }
  for (std::size_t g = 0; g < batch.sequences.front().tables.size(); ++g) {
    inputs_.slots.push_back(input(GGML_TYPE_I64, shape.n_rows));
  }
  GraphBuilder b{.parts = parts, .context = c, .graph = graph_, .inputs = inputs_, .node_data = node_data_};
  parts.attention->begin(b, batch);
  outputs_ = build_decoder(b);
  for (ggml_tensor* output : {outputs_.logits, outputs_.hidden_states}) {
    if (!output) continue;
    ggml_set_output(output);
    ggml_build_forward_expand(graph_, output);
  }
}

void StepGraph::fill_rows(const Batch& batch) {
  auto* tokens = data<std::int32_t>(inputs_.tokens);
  std::fill_n(tokens, shape_.n_rows, 0);  // padding, and embeddings: what layers know of tokens, they know of this one
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    if (batch.rows[i].kind == RowSource::Kind::kToken) tokens[i] = batch.rows[i].number;
  }
  if (!inputs_.embeddings) return;
  auto* sources = data<std::int32_t>(inputs_.sources);
  auto* embeddings = data<float>(inputs_.embeddings);
  const auto width = static_cast<std::size_t>(inputs_.embeddings->ne[0]);
  for (int i = 0; i < shape_.n_rows; ++i) sources[i] = i;
  if (parts_.spec->n_planes > 0) std::fill_n(embeddings, ggml_nelements(inputs_.embeddings), 0.0F);
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    if (batch.rows[i].kind != RowSource::Kind::kEmbedding) continue;
    sources[i] += shape_.n_rows;  // the same row of the second half: decoder.cpp
    std::ranges::copy(batch.embeddings[static_cast<std::size_t>(batch.rows[i].number)], embeddings + i * width);
  }
}

void StepGraph::fill_positions(const Batch& batch) {
  auto* positions = data<std::int32_t>(inputs_.positions);
  std::fill_n(positions, shape_.n_rows, 0);  // padding
  std::int32_t* to = positions;
  for (const BatchSequence& s : batch.sequences) {
    for (std::int32_t i = 0; i < s.n_rows; ++i) *to++ = s.first_position + i;
  }
  if (!parts_.spec->has_sections()) return;
  for (int plane = 1; plane < 4; ++plane) std::copy_n(positions, shape_.n_rows, positions + plane * shape_.n_rows);
  for (std::size_t i = 0; i < batch.positions.size(); ++i) {
    const RopePosition& p = batch.positions[i];
    const std::int32_t parts[] = {p.time, p.height, p.width, p.time};
    for (std::size_t plane = 0; plane < 4; ++plane)
      positions[plane * static_cast<std::size_t>(shape_.n_rows) + i] = parts[plane];
  }
}

void StepGraph::fill(const Batch& batch) {
  fill_rows(batch);
  fill_positions(batch);
  const auto* positions = data<std::int32_t>(inputs_.positions);
  int row = 0;
  for (const BatchSequence& s : batch.sequences) {
    for (std::int32_t p = s.first_position; p < s.first_position + s.n_rows; ++p, ++row) {
      for (std::size_t g = 0; g < inputs_.slots.size(); ++g) {
        data<std::int64_t>(inputs_.slots[g])[row] = parts_.store->row(g, s.tables[g], p);
      }
    }
  }
  for (int padding = 0; row < shape_.n_rows; ++row, ++padding) {
    for (std::size_t g = 0; g < inputs_.slots.size(); ++g) {
      data<std::int64_t>(inputs_.slots[g])[row] = parts_.store->scratch_row(g, padding);
    }
  }
  if (inputs_.temperatures) {
    const model::TemperatureSpec& t = parts_.spec->temperature;
    auto* temperatures = data<float>(inputs_.temperatures);
    for (int i = 0; i < shape_.n_rows; ++i) {
      const int lengths = (positions[i] + t.offset) / t.length;  // whole ones
      temperatures[i] = 1.0F + t.scale * std::log(1.0F + static_cast<float>(lengths));
    }
  }
  if (inputs_.output_rows) {
    auto* outputs = data<std::int32_t>(inputs_.output_rows);
    const auto put = [](const std::vector<std::int32_t>& rows, std::int32_t* to, int n) {
      std::fill(std::ranges::copy(rows, to).out, to + n, 0);
    };
    put(batch.logit_rows, outputs, shape_.n_logits);
    put(batch.hidden_rows, outputs + shape_.n_logits, shape_.n_hidden);
  }
  parts_.attention->fill(batch);
  if (parts_.states) parts_.states->fill(batch);
}

}  // namespace coppice::executor
