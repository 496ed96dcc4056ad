// PageLayout: which layers share a page of the pool, and where in it the keys and values of each lie. Plain data.
//
// A page holds the keys and values of block_size tokens in the layers of one group, layer behind layer: the keys of all
// slots, then the values of all slots. All pages have one size, that of the group that remembers everything (or a
// little more). The layers of a window that don't fit into one page form several groups; what the last of these leaves
// of its pages lies idle.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/kv_format.h"
#include "executor/base/state_layout.h"
#include "kv/types.h"
#include "model/model.h"

namespace coppice::executor {

/// What a layer keeps of each token.
struct KvLayer {
  int window = 0;     ///< as model::AttentionSpec
  int n_kv_head = 0;  ///< 0: it keeps nothing, and reads what another layer keeps
  int head_dim = 0;
  bool chunked = false, causal = false;  ///< as model::AttentionSpec
};

struct PageLayout {
  struct Layer {
    int group = -1;             ///< -1: it keeps nothing
    std::size_t row_bytes = 0;  ///< of one slot's keys (or values), all heads
    std::size_t offset = 0;     ///< of its keys in a page; its values lie block_size rows behind
  };

  attention::KvFormat format = attention::KvFormat::kF16;
  int block_size = 0;
  std::size_t page_bytes = 0;
  /// By window, all positions first; the first one keeps everything. Last the recurrent one.
  std::vector<kv::GroupSpec> groups;
  std::vector<Layer> layers;  ///< as the model's; those of one group have rows of one size
  StateLayout state;

  /// Groups that have tables: all but the recurrent one.
  int n_tables() const { return static_cast<int>(groups.size()) - (state.n_pages > 0 ? 1 : 0); }
};

std::vector<KvLayer> kv_layers(const model::ModelSpec& spec);

/// states: as `layers`, or empty where no layer is recurrent. Throws model::LoadError when heads can't be stored in the
/// format, or when the layers that keep everything differ in heads. REQUIRES: some layer keeps keys and values.
PageLayout make_page_layout(std::span<const KvLayer> layers, attention::KvFormat format, int block_size,
                            std::span<const StateLayer> states = {});

/// What a window's layers take of the pool: a sentence for each.
std::vector<std::string> describe_pages(const PageLayout& layout);

/// ExecutorInfo::layout. order: of the numbers in a block, and what they are; empty: the format's, as
/// attention/layout.h has it.
std::string describe_layout(const PageLayout& layout, const model::ModelSpec& spec, std::string_view order = {});

}  // namespace coppice::executor
