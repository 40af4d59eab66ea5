// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GPTMODEL_HPP
#define SPOROS_GPTMODEL_HPP

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "Sporos_GptConfig.hpp"
#include "Sporos_Random.hpp"
#include "Sporos_ShardedState.hpp"
#include "Sporos_StorageTypes.hpp"
#include "Sporos_Workspace.hpp"

namespace Sporos::Gpt {

/// The tensors of gpt_layout() as Views of one flat buffer: of the parameters, or of the gradients
template <class ExecutionSpace, class Element>
struct GptTensors {
  using Memory = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  using Vector = Kokkos::View<Element*, Kokkos::LayoutRight, typename ExecutionSpace::memory_space, Memory>;
  using Matrix = Kokkos::View<Element**, Kokkos::LayoutRight, typename ExecutionSpace::memory_space, Memory>;

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
    std::int64_t begin;  ///< where the block starts in the flat buffer
  };

  GptTensors(StateLayout const& layout, Kokkos::View<Element*, typename ExecutionSpace::memory_space> const& flat,
             std::int64_t layers);

  Matrix wte, wpe;
  std::vector<Block> blocks;
  Norm ln_f;
  std::int64_t ln_f_begin;
};

/// Draws GPT-2's initial weights into master and parameters: matrices and tables from N(0, 0.02²), those that add to the residual
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

/// Forward and backward pass of GPT-2 over a micro-batch, on the parameters and gradients of a ShardedState, which must outlive
/// it. Owns the activations; nothing is recomputed. T ∈ {double, float, bfloat16}.
///
/// Everything is enqueued on the execution-space instance; no function here fences.
template <class ExecutionSpace, class T>
class GptModel {
 public:
  using Compute = ComputeType<T>;
  using MemorySpace = typename ExecutionSpace::memory_space;
  using Tokens = Kokkos::View<int const*, MemorySpace>;
  using Loss = Kokkos::View<double, MemorySpace>;
  /// Told as the backward pass goes on: the elements [begin, end) of the flat gradients are final once all work enqueued so far
  /// is done. The ranges come from the end of the buffer to its beginning and cover it.
  using Ready = std::function<void(std::int64_t begin, std::int64_t end)>;

  /// Holds activations of `max_sequences` sequences of `max_length` tokens.
  GptModel(ExecutionSpace const& space, GptConfig const& config, ShardedState<ExecutionSpace, T> const& state,
           std::int64_t max_sequences, std::int64_t max_length);

  /// loss = Σ −log p(targets[i] | the inputs of its sequence up to i), without dropout
  /// \param inputs, targets (sequences · length); a target −1 counts nothing
  void loss(Tokens const& inputs, Tokens const& targets, std::int64_t length, Loss const& loss);

  /// The same with dropout, and adds scale · ∂loss/∂parameter to the gradients.
  void loss_and_gradients(Tokens const& inputs, Tokens const& targets, std::int64_t length, double scale,
                          DropoutPlace const& place, Loss const& loss, Ready const& ready = {});

  /// The logits (vocabulary) of the token after `inputs`, one sequence. Where `inputs` goes on with a sequence of which the
  /// last calls had the first `before` tokens, keys and values of those are still there: only `inputs` is computed. Any other
  /// call in between overwrites them.
  void next_token_logits(Tokens const& inputs, Kokkos::View<Compute*, MemorySpace> const& logits,
                         std::int64_t before = 0);

  GptConfig const& config() const { return m_config; }
  /// The longest sequence it takes
  std::int64_t max_length() const { return m_max_length; }

 private:
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
  NormActivations norm_activations(std::int64_t rows) const;
  template <class Element>
  Owner<Element> allocate(char const* label, std::int64_t count) const;
  std::int64_t chunk_rows(std::int64_t rows) const;

  void forward(Tokens const& inputs, Shape const& shape, DropoutPlace const& place, std::int64_t before = 0);
  void norm_forward(Matrix<T> const& x, Owner<T> const* residual,
                    typename GptTensors<ExecutionSpace, T>::Norm const& norm, Dropout const& dropout,
                    Shape const& shape, NormActivations const& out);
  void head(Tokens const& targets, Shape const& shape, Loss const& loss, double const* gradient_scale);
  void backward(Tokens const& inputs, Shape const& shape, DropoutPlace const& place, Ready const& ready);
  Matrix<T> norm_backward(bool last, typename GptTensors<ExecutionSpace, T>::Norm const& norm,
                          typename GptTensors<ExecutionSpace, Compute>::Norm const& gradient, Dropout const& dropout,
                          Shape const& shape, NormActivations const& saved);
  void linear_backward(Matrix<T> const& x, Matrix<T> const& dy,
                       typename GptTensors<ExecutionSpace, T>::Linear const& linear,
                       typename GptTensors<ExecutionSpace, Compute>::Linear const& gradient, Matrix<T> const& dx);

  ExecutionSpace m_space;
  GptConfig m_config;
  std::int64_t m_max_sequences, m_max_length, m_gradient_size;
  GptTensors<ExecutionSpace, T> m_parameters;
  GptTensors<ExecutionSpace, Compute> m_gradients;

  std::vector<BlockActivations> m_blocks;
  NormActivations m_ln_f;
  Owner<T> m_branch;  // what is about to be added to the residual stream
  Owner<Compute> m_logits, m_losses, m_log_sum_exp;
  Owner<T> m_logits_gradient;
  Owner<T> m_wide, m_narrow, m_residual_gradient, m_branch_gradient;  // of the backward pass
  Workspace<ExecutionSpace> m_workspace;
};

}  // namespace Sporos::Gpt

#endif
