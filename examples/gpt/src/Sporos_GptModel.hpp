// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GPTMODEL_HPP
#define SPOROS_GPTMODEL_HPP

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "Sporos_GptConfig.hpp"
#include "Sporos_Random.hpp"
#include "Sporos_ShardedState.hpp"
#include "Sporos_StateAccess.hpp"
#include "Sporos_StorageTypes.hpp"
#include "Sporos_Workspace.hpp"

namespace Sporos::Gpt {

/// The units of gpt_layout(): the tables, the blocks, the last norm
struct GptUnits {
  static constexpr std::size_t tables = 0;
  static constexpr std::size_t block(std::int64_t layer) { return 1 + std::size_t(layer); }
  static constexpr std::size_t last_norm(std::int64_t layers) { return 1 + std::size_t(layers); }
};

/// The tensors of a unit of gpt_layout() as Views of memory that holds it: of its parameters, or of their gradients
template <class ExecutionSpace, class Element>
class GptTensors {
 public:
  using Memory = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  using Vector = Kokkos::View<Element*, Kokkos::LayoutRight, typename ExecutionSpace::memory_space, Memory>;
  using Matrix = Kokkos::View<Element**, Kokkos::LayoutRight, typename ExecutionSpace::memory_space, Memory>;

  struct Tables {
    Matrix wte, wpe;
  };
  struct Norm {
    Vector weight, bias;
  };
  struct Linear {
    Matrix weight;  ///< (in, out)
    Vector bias;
  };
  struct Block {
    Norm ln_1;
    Linear attention_in;  ///< c_attn: queries, keys and values side by side
    Linear attention_out;
    Norm ln_2;
    Linear mlp_in;
    Linear mlp_out;
  };

  explicit GptTensors(StateLayout layout) : m_layout(std::move(layout)) {}

  /// \param unit the first element of the unit
  Tables tables(Element* unit) const;
  Block block(std::int64_t layer, Element* unit) const;
  Norm last_norm(std::int64_t layers, Element* unit) const;

 private:
  class Reader;
  Reader read(std::size_t unit, Element* memory) const;

  StateLayout m_layout;
};

/// Draws GPT-2's initial weights into what the state holds of master and parameters: matrices and tables from N(0, 0.02²), those that add to the residual
/// stream from N(0, 0.02²/(2·layers)), norms one, biases zero (Radford et al., "Language Models are Unsupervised Multitask
/// Learners", 2019, section 2.3). An element depends on (seed, tensor, its index) alone.
template <class ExecutionSpace, class T>
void initialise_gpt(ExecutionSpace const& space, GptConfig const& config, std::uint64_t seed,
                    ShardedState<ExecutionSpace, T> const& state);

/// Where in a run a micro-batch lies; the dropout masks depend on nothing else.
struct DropoutPlace {
  double probability = 0;
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t first_sequence = 0;  ///< of the micro-batch, in the global batch
};

/// Forward and backward pass of GPT-2 over a micro-batch. The model reaches parameters and gradients through a StateAccess, unit
/// by unit, and reports each unit's gradients as soon as they are final: from the last norm to the tables.
/// T ∈ {double, float, bfloat16}.
///
/// It owns the activations. With `recompute` it keeps only the residual stream before each block and computes the rest of a block
/// a second time when the backward pass reaches it (Chen et al., "Training deep nets with sublinear memory cost", 2016); losses
/// and gradients have the same bits.
///
/// Everything is enqueued on the execution-space instance; no function here fences.
template <class ExecutionSpace, class T>
class GptModel {
 public:
  using Compute = ComputeType<T>;
  using MemorySpace = typename ExecutionSpace::memory_space;
  using Tokens = Kokkos::View<int const*, MemorySpace>;
  using Loss = Kokkos::View<double, MemorySpace>;
  using Access = StateAccess<ExecutionSpace, T>;

  /// Holds activations of `max_sequences` sequences of `max_length` tokens. The access must outlive it.
  GptModel(ExecutionSpace const& space, GptConfig const& config, Access& access, std::int64_t max_sequences,
           std::int64_t max_length, bool recompute = false);

  /// On a state of which everything is here
  GptModel(ExecutionSpace const& space, GptConfig const& config, ShardedState<ExecutionSpace, T> const& state,
           std::int64_t max_sequences, std::int64_t max_length, bool recompute = false);

  /// loss = Σ −log p(targets[i] | the inputs of its sequence up to i), without dropout
  /// \param inputs, targets (sequences · length); a target −1 counts nothing
  void loss(Tokens const& inputs, Tokens const& targets, std::int64_t length, Loss const& loss);

  /// The same with dropout, and adds scale · ∂loss/∂parameter to the gradients.
  void loss_and_gradients(Tokens const& inputs, Tokens const& targets, std::int64_t length, double scale,
                          DropoutPlace const& place, Loss const& loss);

  /// What a rank does while others compute a loss, with its gradients or without: parameters that are shared out are gathered,
  /// and gradients reduced, by all ranks together.
  void attend(bool with_gradients);

  /// The logits (vocabulary) of the token after `inputs`, one sequence. Where `inputs` goes on with a sequence of which the
  /// last calls had the first `before` tokens, keys and values of those are still there: only `inputs` is computed. Any other
  /// call in between overwrites them.
  void next_token_logits(Tokens const& inputs, Kokkos::View<Compute*, MemorySpace> const& logits,
                         std::int64_t before = 0);

  GptConfig const& config() const { return m_config; }
  /// The longest sequence it takes
  std::int64_t max_length() const { return m_max_length; }
  /// The memory of activations and other intermediate results
  std::size_t bytes() const { return m_bytes + m_workspace.bytes(); }

 private:
  GptModel(ExecutionSpace const& space, GptConfig const& config, std::unique_ptr<Access> own_access,
           Access* other_access, std::int64_t max_sequences, std::int64_t max_length, bool recompute);

  template <class Element>
  using Matrix = typename GptTensors<ExecutionSpace, Element>::Matrix;
  template <class Element>
  using Vector = typename GptTensors<ExecutionSpace, Element>::Vector;
  template <class Element>
  using Owner = Kokkos::View<Element*, MemorySpace>;
  using Heads = Kokkos::View<T****, Kokkos::LayoutStride, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  using LogSumExp = Kokkos::View<Compute***, Kokkos::LayoutRight, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  /// Residual stream and its normalisation at one of the 2 · layers + 1 norms
  struct NormActivations {
    Owner<T> residual, normalised;
    Owner<Compute> mean, rstd;
  };
  struct BlockActivations {
    NormActivations ln_1, ln_2;
    Owner<T> qkv, attention;
    Owner<Compute> log_sum_exp;
    Owner<T> mlp_in, mlp_activation;
  };
  /// What one call works on
  struct Shape {
    std::int64_t sequences, length, rows;
  };
  /// The places of a block that drop out: what enters its first norm, the attention weights, what enters its second norm. The
  /// last norm is one more place behind all blocks.
  enum Place { before_ln_1, in_attention, before_ln_2, places_per_block };

  Shape shape_of(Tokens const& inputs, std::int64_t length) const;
  Dropout dropout(DropoutPlace const& place, std::int64_t where, std::int64_t elements_per_sequence) const;
  Dropout row_dropout(DropoutPlace const& place, std::int64_t where, Shape const& shape) const;
  Dropout attention_dropout(DropoutPlace const& place, std::int64_t layer, Shape const& shape) const;
  Heads heads_of(Owner<T> const& qkv, Shape const& shape, std::int64_t which, std::int64_t first = 0) const;
  Heads heads_of_output(Owner<T> const& output, Shape const& shape) const;
  NormActivations norm_activations(std::int64_t rows);
  BlockActivations block_activations(std::int64_t rows);
  template <class Element>
  Owner<Element> allocate(char const* label, std::int64_t count);
  std::int64_t chunk_rows(std::int64_t rows) const;

  /// The parameters of a unit, here as long as this object is
  class Use {
   public:
    Use(Access& access, std::size_t unit, std::optional<std::size_t> next)
        : m_access(access), m_unit(unit), m_data(access.parameters(unit, next)) {}
    ~Use() { m_access.release(m_unit); }
    Use(Use const&) = delete;
    Use& operator=(Use const&) = delete;
    T* data() const { return m_data; }

   private:
    Access& m_access;
    std::size_t m_unit;
    T* m_data;
  };
  std::size_t unit_after(std::int64_t layer) const { return GptUnits::block(layer + 1); }
  std::optional<std::size_t> unit_before(std::int64_t layer) const {
    return layer == 0 ? std::nullopt : std::optional(GptUnits::block(layer - 1));
  }

  void forward(Tokens const& inputs, Shape const& shape, DropoutPlace const& place, std::int64_t before = 0);
  void norm_forward(Matrix<T> const& x, Owner<T> const* residual,
                    typename GptTensors<ExecutionSpace, T>::Norm const& norm, Dropout const& dropout,
                    Shape const& shape, NormActivations const& out);
  void block_forward(std::int64_t layer, typename GptTensors<ExecutionSpace, T>::Block const& weights,
                     Shape const& shape, DropoutPlace const& place, std::int64_t before = 0);
  void block_backward(std::int64_t layer, typename GptTensors<ExecutionSpace, T>::Block const& weights,
                      Shape const& shape, DropoutPlace const& place);
  void recompute_block(std::int64_t layer, typename GptTensors<ExecutionSpace, T>::Block const& weights,
                       Shape const& shape, DropoutPlace const& place);
  void head(Tokens const& targets, Shape const& shape, Loss const& loss, double const* gradient_scale);
  void backward(Tokens const& inputs, Shape const& shape, DropoutPlace const& place);
  void norm_backward(bool last, typename GptTensors<ExecutionSpace, T>::Norm const& norm,
                     typename GptTensors<ExecutionSpace, Compute>::Norm const& gradient, Dropout const& dropout,
                     Shape const& shape, NormActivations const& saved);
  void linear_backward(Matrix<T> const& x, Matrix<T> const& dy,
                       typename GptTensors<ExecutionSpace, T>::Linear const& linear,
                       typename GptTensors<ExecutionSpace, Compute>::Linear const& gradient, Matrix<T> const& dx);

  ExecutionSpace m_space;
  GptConfig m_config;
  std::int64_t m_max_sequences, m_max_length;
  bool m_recompute;
  std::unique_ptr<Access> m_own_access;
  Access& m_access;
  GptTensors<ExecutionSpace, T> m_parameters;
  GptTensors<ExecutionSpace, Compute> m_gradients;
  std::size_t m_bytes = 0;

  std::vector<BlockActivations> m_blocks;
  NormActivations m_ln_f;
  Owner<T> m_branch;  // what is about to be added to the residual stream
  Owner<Compute> m_logits, m_losses, m_log_sum_exp;
  Owner<T> m_logits_gradient;
  Owner<T> m_wide, m_narrow, m_residual_gradient, m_branch_gradient;  // of the backward pass
  Matrix<T> m_dbranch;                                                // where the gradient of the branch is now
  Workspace<ExecutionSpace> m_workspace;
};

}  // namespace Sporos::Gpt

#endif
