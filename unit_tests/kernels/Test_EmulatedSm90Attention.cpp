// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>
#include <cstring>
#include <memory>

#include "AttentionCases.hpp"
#include "AttentionReference.hpp"
#include "impl/Sporos_FlashAttention_BackwardTile.hpp"
#include "impl/Sporos_FlashAttention_ForwardTile.hpp"
#include "tile/Sporos_Arch_EmulatedSm90.hpp"

// The bodies on an emulated Hopper: producer and consumers, barriers with phases, products and copies as late or as early as
// waits permit.
namespace {

using namespace Sporos;
using namespace Sporos::Testing;
using Emulated = Arch::Emulated<Arch::Sm90>;
using HopperTeam = Team<Emulated>;

/// Scratch of Tile, full of `byte`, from a multiple of 1024 bytes on
template <class Tile>
class TeamScratch {
 public:
  explicit TeamScratch(unsigned char byte) : m_bytes(sizeof(typename Tile::Scratch) + 1024) {
    auto const address = reinterpret_cast<std::uintptr_t>(m_bytes.data());
    m_start = m_bytes.data() + (1024 - address % 1024) % 1024;
    std::memset(m_start, byte, sizeof(typename Tile::Scratch));
  }
  unsigned char* start() { return m_start; }
  typename Tile::Scratch& get() { return *reinterpret_cast<typename Tile::Scratch*>(m_start); }

 private:
  std::vector<unsigned char> m_bytes;
  unsigned char* m_start;
};

template <class T>
Emulation::BoxMap map_of(Impl::HeadTensor<T const>& tensor, int number, int rows, int box_rows) {
  tensor.map = number;
  return {tensor.data, tensor.sequence_stride, tensor.head_stride, tensor.batch_stride, tensor.width, rows, box_rows};
}

/// Both roles for items 0 ... items - 1, one after another by the same team
template <class Tile, class Produce, class Consume>
void on_one_team(Emulation::Adversary const& adversary, std::vector<Emulation::BoxMap> const& maps, int items,
                 Produce const& produce, Consume const& consume) {
  TeamScratch<Tile> scratch(adversary.scratch_byte);
  Emulation::run_warpgroups<HopperTeam>(adversary, maps, scratch.start(), [&](HopperTeam& team) {
    Tile tile(team, scratch.get());
    bool const takes_part = !team.loads() || team.is_first_loading_warp() || maps.empty();
    for (int item = 0; takes_part && item < items; ++item) team.loads() ? produce(tile, item) : consume(tile, item);
  });
}

template <class T, int HeadDim>
void run_forward(AttentionProblem<T>& problem, bool with_maps, Emulation::Adversary const& adversary) {
  auto a = problem.arguments();
  using Tile = FlashAttentionForwardTile<Emulated, T, HeadDim>;
  std::vector<Emulation::BoxMap> maps;
  if (with_maps && a.cumulative_queries == nullptr)
    maps = {map_of(a.q, 1, a.queries, Tile::queries), map_of(a.k, 2, a.keys, Tile::keys),
            map_of(a.v, 3, a.keys, Tile::keys)};
  int const tiles = Tile::tiles(a);
  auto const head = [&](int item) { return FlashAttentionHead<T>(a, item / tiles / a.heads, item / tiles % a.heads); };
  on_one_team<Tile>(
      adversary, maps, a.batch * a.heads * tiles, [&](Tile& tile, int i) { tile.produce(head(i), i % tiles); },
      [&](Tile& tile, int i) { tile.consume(head(i), i % tiles); });
}

/// What comes before and after the tiles, written for one row after another
template <class T>
void prepare_rows(Impl::FlashAttentionBackwardArguments<T> const& b) {
  auto const& a = b.forward;
  for (int i = 0; i < a.batch * a.heads; ++i) {
    FlashAttentionHead<T> const head(a, i / a.heads, i % a.heads);
    for (int query = 0; query < head.padded_queries(b); ++query) {
      bool const real = query < head.queries();
      float delta = 0;
      for (int d = 0; real && d < head.o().columns; ++d)
        delta += float(head.o().row(query)[d]) * float(head.of_query_head(b.d_o).row(query)[d]);
      if (real && b.d_lse.data) delta -= *head.rows_of_head(b.d_lse).row(query);
      float const lse = real ? *head.lse().row(query) : -infinity<float>;
      std::int64_t const row = head.padded_row(b) + query;
      b.lse_log2[row] = lse == -infinity<float> ? infinity<float> : lse * log2_e<float>;
      b.delta[row] = delta;
      for (int d = 0; d < b.padded_head_dim; ++d) head.dq_sums(b, 0).row(query)[d] = 0;
    }
  }
}

template <class Order, class T>
void store_sums(Impl::FlashAttentionBackwardArguments<T> const& b, int queries) {
  auto const& a = b.forward;
  for (int i = 0; i < a.batch * a.heads; ++i) {
    FlashAttentionHead<T> const head(a, i / a.heads, i % a.heads);
    auto const dq = head.of_query_head(b.dq);
    for (int block = 0; block * queries < head.queries(); ++block)
      for (int warp = 0; warp < HopperTeam::warps; ++warp)
        for (int lane = 0; lane < 32; ++lane)
          for (int r = 0; r < Order::columns / 2; ++r) {
            int const query = block * queries + Order::column(warp, r, lane), d = Order::row(warp, r, lane);
            if (query >= dq.rows || d >= dq.columns) continue;
            float const sum = head.dq_sums(b, 0).row(block * queries)[Order::offset(warp, r / 4, lane) + r % 4];
            dq.row(query)[d] = T(a.scale * sum);
          }
  }
}

template <class T, int HeadDim>
void run_backward(AttentionProblem<T>& problem, bool with_maps, Emulation::Adversary const& adversary) {
  using Tile = FlashAttentionBackwardTile<Emulated, T, HeadDim>;
  auto b = problem.backward_arguments(1, Tile::queries, HeadDim);
  auto& a = b.forward;
  prepare_rows(b);
  std::vector<Emulation::BoxMap> maps;
  if (with_maps && a.cumulative_queries == nullptr)
    maps = {map_of(a.q, 1, a.queries, Tile::queries), map_of(a.k, 2, a.keys, Tile::keys),
            map_of(a.v, 3, a.keys, Tile::keys), map_of(b.d_o, 4, a.queries, Tile::queries)};
  on_one_team<Tile>(
      adversary, maps, a.batch * a.kv_heads,
      [&](Tile& tile, int i) { tile.produce(b, i / a.kv_heads, i % a.kv_heads, 0); },
      [&](Tile& tile, int i) { tile.consume(b, i / a.kv_heads, i % a.kv_heads, 0); });
  store_sums<ColumnSumsOrder<HopperTeam::groups, HeadDim, Tile::queries>>(b, Tile::queries);
}

template <int HeadDim>
void require_as_good(AttentionCase const& shape) {
  check_attention<bfloat16>(shape, [](AttentionProblem<bfloat16>& problem, int slots) {
    Emulation::Adversary const adversary{.seed = unsigned(slots / 2)};
    bool const with_maps = slots == 1;
    run_forward<bfloat16, HeadDim>(problem, with_maps, adversary);
    run_backward<bfloat16, HeadDim>(problem, with_maps, adversary);
  });
}

// 17: less than a block; 200: some, and a rest. Jumps: 150 exceeds any exponent of a float: the slow path.
TEST_CASE("flash attention on an emulated Hopper is as good as plain", "[attention][sm90]") {
  auto const shape = GENERATE(AttentionCase{64, 17, 17}, AttentionCase{64, 200, 300, CausalMask::bottom_right, 2},
                              AttentionCase{64, 100, 400, CausalMask::none, 150}, AttentionCase{64, 70, 0},
                              AttentionCase{.head_dim = 40, .queries = 130, .keys = 150, .heads = 4, .kv_heads = 2});
  require_as_good<64>(shape);
}

TEST_CASE("flash attention of wide heads on an emulated Hopper is as good as plain", "[attention][sm90]") {
  require_as_good<128>({128, 130, 190, CausalMask::top_left});
}

// Waits are those of Q, K2, K1, V2, K0, V1, V0 in a consumer, and for as many free buffers in the producer; the first ones are
// for buffers that nobody has used.
TEST_CASE("a forgotten wait shows on an emulated Hopper", "[attention][sm90][emulation]") {
  AttentionCase const shape{64, 64, 384};
  AttentionProblem<bfloat16> problem(shape);
  AttentionReference<bfloat16> const reference(problem);
  auto const shown = [&](int wait) {
    for (unsigned seed = 0; seed < 4; ++seed)
      for (auto byte : {Emulation::nan_byte, Emulation::finite_byte}) {
        AttentionProblem<bfloat16> run(shape);
        try {
          run_forward<bfloat16, 64>(run, true, {.seed = seed, .forgotten_wait = wait, .scratch_byte = byte});
        } catch (std::logic_error const&) {
          return true;
        }
        if (!(reference.errors(run).o <= 2)) return true;
      }
    return false;
  };
  CHECK_FALSE(shown(-1));
  for (int wait : {0, 1, 2, 3, 4, 5, 6}) {
    CAPTURE(wait);
    CHECK(shown(wait));
  }
}

TEST_CASE("a forgotten arrival is reported with its barrier", "[attention][sm90][emulation]") {
  AttentionProblem<bfloat16> problem({64, 64, 384});
  std::string message;
  try {
    run_forward<bfloat16, 64>(problem, true, {.forgotten_barrier = 0});
  } catch (std::logic_error const& error) {
    message = error.what();
  }
  CHECK(message.find("barrier") != std::string::npos);
  CHECK(message.find("phase") != std::string::npos);
}

}  // namespace
