// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_GptModel.hpp"

#include <Kokkos_MathematicalFunctions.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "Sporos_AdamW.hpp"
#include "Sporos_CrossEntropy.hpp"
#include "Sporos_Embedding.hpp"
#include "Sporos_Error.hpp"
#include "Sporos_FlashAttention.hpp"
#include "Sporos_Gelu.hpp"
#include "Sporos_Gemm.hpp"
#include "Sporos_LayerNorm.hpp"

namespace Sporos::Gpt {
namespace {

constexpr double layer_norm_epsilon = 1e-5;  // GPT-2's

/// Element first + i of one tensor: mean + deviation · N(0, 1), by Box and Muller from two words of the tensor's own stream
template <class ExecutionSpace, class Element>
struct InitialiseTensor {
  Kokkos::View<Element*, typename ExecutionSpace::memory_space> elements;
  std::int64_t first;
  double mean, deviation;
  RandomStream random;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    double value = mean;
    if (deviation != 0) {
      std::uint64_t const word = 2 * std::uint64_t(first + i);
      double const radius = Kokkos::sqrt(-2 * Kokkos::log(random.uniform(word)));
      double const angle = 2 * Kokkos::numbers::pi * random.uniform(word + 1);
      value += deviation * radius * Kokkos::cos(angle);
    }
    elements(i) = Element(ComputeType<Element>(value));
  }
};

}  // namespace

/// Hands out the tensors of a unit in the order in which gpt_layout() has added them.
template <class ExecutionSpace, class Element>
class GptTensors<ExecutionSpace, Element>::Reader {
 public:
  Reader(TensorRange const* tensor, std::int64_t unit_begin, Element* unit)
      : m_tensor(tensor), m_unit_begin(unit_begin), m_unit(unit) {}

  Vector vector() {
    TensorRange const& tensor = *m_tensor++;
    return Vector(m_unit + (tensor.offset - m_unit_begin), std::size_t(tensor.shape.at(0)));
  }
  Matrix matrix() {
    TensorRange const& tensor = *m_tensor++;
    return Matrix(m_unit + (tensor.offset - m_unit_begin), std::size_t(tensor.shape.at(0)),
                  std::size_t(tensor.shape.at(1)));
  }
  Norm norm() {
    Vector const weight = vector();
    return {weight, vector()};
  }
  Linear linear() {
    Matrix const weight = matrix();
    return {weight, vector()};
  }

 private:
  TensorRange const* m_tensor;
  std::int64_t m_unit_begin;
  Element* m_unit;
};

template <class ExecutionSpace, class Element>
auto GptTensors<ExecutionSpace, Element>::read(std::size_t unit, Element* memory) const -> Reader {
  std::int64_t const begin = m_layout.units().at(unit).first;
  auto const& tensors = m_layout.tensors();
  auto const first = std::partition_point(tensors.begin(), tensors.end(),
                                          [&](TensorRange const& tensor) { return tensor.offset < begin; });
  return Reader(&*first, begin, memory);
}

template <class ExecutionSpace, class Element>
auto GptTensors<ExecutionSpace, Element>::tables(Element* unit) const -> Tables {
  Reader reader = read(GptUnits::tables, unit);
  Matrix const wte = reader.matrix();
  return {wte, reader.matrix()};
}

template <class ExecutionSpace, class Element>
auto GptTensors<ExecutionSpace, Element>::block(std::int64_t layer, Element* unit) const -> Block {
  Reader reader = read(GptUnits::block(layer), unit);
  Block block;
  block.ln_1 = reader.norm();
  block.attention_in = reader.linear();
  block.attention_out = reader.linear();
  block.ln_2 = reader.norm();
  block.mlp_in = reader.linear();
  block.mlp_out = reader.linear();
  return block;
}

template <class ExecutionSpace, class Element>
auto GptTensors<ExecutionSpace, Element>::last_norm(std::int64_t layers, Element* unit) const -> Norm {
  return read(GptUnits::last_norm(layers), unit).norm();
}

template <class ExecutionSpace, class T>
void initialise_gpt(ExecutionSpace const& space, GptConfig const& config, std::uint64_t seed,
                    ShardedState<ExecutionSpace, T> const& state) {
  std::uint64_t stream = 0;
  for (TensorRange const& tensor : state.layout().tensors()) {
    bool const is_matrix = tensor.shape.size() == 2;
    bool const is_gain = !is_matrix && tensor.name.find("ln_") != std::string::npos && tensor.name.ends_with(".weight");
    bool const adds_to_stream = tensor.name.ends_with(".c_proj.weight");
    double const deviation = !is_matrix ? 0 : adds_to_stream ? 0.02 / std::sqrt(2.0 * double(config.layers)) : 0.02;
    RandomStream const random(seed, stream++);
    auto const draw = [&](auto const& flat) {
      using Element = typename std::decay_t<decltype(flat)>::value_type;
      Interval const all{tensor.offset, tensor.offset + tensor.size};
      state.for_each_held(flat, all, [&](Interval const& held, auto const& elements) {
        InitialiseTensor<ExecutionSpace, Element> const initialise{elements, held.first - tensor.offset,
                                                                   is_gain ? 1.0 : 0.0, deviation, random};
        Kokkos::parallel_for(
            "Sporos::gpt::initialise",
            Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>(space, 0, held.size()), initialise);
      });
    };
    draw(state.parameters());
    if constexpr (ShardedState<ExecutionSpace, T>::has_own_master) draw(state.master());
  }
}

template <class ExecutionSpace, class T>
GptModel<ExecutionSpace, T>::GptModel(ExecutionSpace const& space, GptConfig const& config, Access& access,
                                      std::int64_t max_sequences, std::int64_t max_length, bool recompute)
    : GptModel(space, config, nullptr, &access, max_sequences, max_length, recompute) {}

template <class ExecutionSpace, class T>
GptModel<ExecutionSpace, T>::GptModel(ExecutionSpace const& space, GptConfig const& config,
                                      ShardedState<ExecutionSpace, T> const& state, std::int64_t max_sequences,
                                      std::int64_t max_length, bool recompute)
    : GptModel(space, config, std::make_unique<Access>(state), nullptr, max_sequences, max_length, recompute) {}

template <class ExecutionSpace, class T>
GptModel<ExecutionSpace, T>::GptModel(ExecutionSpace const& space, GptConfig const& config,
                                      std::unique_ptr<Access> own_access, Access* other_access,
                                      std::int64_t max_sequences, std::int64_t max_length, bool recompute)
    : m_space(space),
      m_config(config),
      m_max_sequences(max_sequences),
      m_max_length(max_length),
      m_recompute(recompute),
      m_own_access(std::move(own_access)),
      m_access(m_own_access ? *m_own_access : *other_access),
      m_parameters(m_access.layout()),
      m_gradients(m_access.layout()),
      m_workspace(space) {
  config.check();
  SPOROS_THROW_IF(max_sequences < 1 || max_length < 1 || max_length > config.context, "GptModel for ", max_sequences,
                  " sequences of ", max_length, " tokens; the context is ", config.context);
  std::int64_t const rows = max_sequences * max_length, width = config.width;
  m_blocks.push_back(block_activations(rows));
  for (std::int64_t l = 1; l < config.layers; ++l) {
    if (recompute) {
      m_blocks.push_back(m_blocks.front());  // the same memory for all, but for what they start from
      m_blocks.back().ln_1.residual = allocate<T>("residual", rows * width);
    } else {
      m_blocks.push_back(block_activations(rows));
    }
  }
  m_ln_f = norm_activations(rows);
  m_branch = allocate<T>("branch", rows * width);
  m_logits = allocate<Compute>("logits", chunk_rows(rows) * config.vocabulary);
  m_losses = allocate<Compute>("losses", rows);
  m_log_sum_exp = allocate<Compute>("log_sum_exp", rows);
  if constexpr (std::is_same_v<T, Compute>)
    m_logits_gradient = m_logits;
  else
    m_logits_gradient = allocate<T>("logits_gradient", chunk_rows(rows) * config.vocabulary);
  m_wide = allocate<T>("wide", rows * 4 * width);
  m_narrow = allocate<T>("narrow", rows * width);
  m_residual_gradient = allocate<T>("residual_gradient", rows * width);
  m_branch_gradient = allocate<T>("branch_gradient", rows * width);
}

template <class ExecutionSpace, class T>
template <class Element>
auto GptModel<ExecutionSpace, T>::allocate(char const* label, std::int64_t count) -> Owner<Element> {
  m_bytes += std::size_t(count) * sizeof(Element);
  return Owner<Element>(Kokkos::view_alloc(m_space, Kokkos::WithoutInitializing, std::string("Sporos::gpt::") + label),
                        std::size_t(count));
}

template <class ExecutionSpace, class T>
auto GptModel<ExecutionSpace, T>::norm_activations(std::int64_t rows) -> NormActivations {
  return {allocate<T>("residual", rows * m_config.width), allocate<T>("normalised", rows * m_config.width),
          allocate<Compute>("mean", rows), allocate<Compute>("rstd", rows)};
}

template <class ExecutionSpace, class T>
auto GptModel<ExecutionSpace, T>::block_activations(std::int64_t rows) -> BlockActivations {
  std::int64_t const width = m_config.width;
  BlockActivations block;
  block.ln_1 = norm_activations(rows);
  block.ln_2 = norm_activations(rows);
  block.qkv = allocate<T>("qkv", rows * 3 * width);
  block.attention = allocate<T>("attention", rows * width);
  block.log_sum_exp = allocate<Compute>("log_sum_exp", rows * m_config.heads);
  block.mlp_in = allocate<T>("mlp_in", rows * 4 * width);
  block.mlp_activation = allocate<T>("mlp_activation", rows * 4 * width);
  return block;
}

// The logits are made, used and forgotten for so many rows at a time: at 50257 tokens they would be the largest buffer of all.
template <class ExecutionSpace, class T>
std::int64_t GptModel<ExecutionSpace, T>::chunk_rows(std::int64_t rows) const {
  constexpr std::int64_t elements = std::int64_t(1) << 26;
  return std::clamp<std::int64_t>(elements / m_config.vocabulary, 1, rows);
}

template <class ExecutionSpace, class T>
auto GptModel<ExecutionSpace, T>::shape_of(Tokens const& inputs, std::int64_t length) const -> Shape {
  std::int64_t const rows = std::int64_t(inputs.extent(0));
  SPOROS_THROW_IF(length < 1 || length > m_max_length || rows % length != 0 || rows / length > m_max_sequences,
                  "inputs has ", rows, " tokens in sequences of ", length, "; the model was made for ", m_max_sequences,
                  " sequences of ", m_max_length);
  return {rows / length, length, rows};
}

template <class ExecutionSpace, class T>
Dropout GptModel<ExecutionSpace, T>::dropout(DropoutPlace const& place, std::int64_t where,
                                             std::int64_t elements_per_sequence) const {
  std::int64_t const places = places_per_block * m_config.layers + 1;
  return {place.probability, place.seed, std::uint64_t(place.step * places + where),
          std::uint64_t(place.first_sequence * elements_per_sequence)};
}

template <class ExecutionSpace, class T>
Dropout GptModel<ExecutionSpace, T>::row_dropout(DropoutPlace const& place, std::int64_t where,
                                                 Shape const& shape) const {
  return dropout(place, where, shape.length * m_config.width);
}

template <class ExecutionSpace, class T>
Dropout GptModel<ExecutionSpace, T>::attention_dropout(DropoutPlace const& place, std::int64_t layer,
                                                       Shape const& shape) const {
  return dropout(place, places_per_block * layer + in_attention, m_config.heads * shape.length * shape.length);
}

// Queries, keys and values lie side by side in a row of c_attn's output, each as heads · head_dim. From row `first` on.
template <class ExecutionSpace, class T>
auto GptModel<ExecutionSpace, T>::heads_of(Owner<T> const& qkv, Shape const& shape, std::int64_t which,
                                           std::int64_t first) const -> Heads {
  std::size_t const width = std::size_t(m_config.width), head_dim = std::size_t(m_config.head_dim());
  std::size_t const length = std::size_t(shape.length);
  return Heads(qkv.data() + std::size_t(3 * first + which) * width,
               Kokkos::LayoutStride(std::size_t(shape.sequences), length * 3 * width, length, 3 * width,
                                    std::size_t(m_config.heads), head_dim, head_dim, 1));
}

template <class ExecutionSpace, class T>
auto GptModel<ExecutionSpace, T>::heads_of_output(Owner<T> const& output, Shape const& shape) const -> Heads {
  std::size_t const width = std::size_t(m_config.width), head_dim = std::size_t(m_config.head_dim());
  std::size_t const length = std::size_t(shape.length);
  return Heads(output.data(), Kokkos::LayoutStride(std::size_t(shape.sequences), length * width, length, width,
                                                   std::size_t(m_config.heads), head_dim, head_dim, 1));
}

template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::norm_forward(Matrix<T> const& x, Owner<T> const* residual,
                                               typename GptTensors<ExecutionSpace, T>::Norm const& norm,
                                               Dropout const& dropout, Shape const& shape, NormActivations const& out) {
  std::size_t const rows = std::size_t(shape.rows), width = std::size_t(m_config.width);
  Matrix<T> const before(residual ? residual->data() : nullptr, residual ? rows : 0, width);
  residual_dropout_layernorm(m_space, x, before, norm.weight, norm.bias, dropout, layer_norm_epsilon,
                             Matrix<T>(out.residual.data(), rows, width), Matrix<T>(out.normalised.data(), rows, width),
                             Vector<Compute>(out.mean.data(), rows), Vector<Compute>(out.rstd.data(), rows));
}

// The rows of QKV are the cache of keys and values: those of `before` tokens are kept, and the new ones come behind them.
template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::forward(Tokens const& inputs, Shape const& shape, DropoutPlace const& place,
                                          std::int64_t before) {
  std::size_t const rows = std::size_t(shape.rows), width = std::size_t(m_config.width);
  std::size_t const last_norm = GptUnits::last_norm(m_config.layers);
  Matrix<T> const branch(m_branch.data(), rows, width);
  {
    Use const use(m_access, GptUnits::tables, GptUnits::block(0));
    auto const tables = m_parameters.tables(use.data());
    std::size_t const first = std::size_t(before);
    Matrix<T> const positions(tables.wpe.data() + first * width, tables.wpe.extent(0) - first, width);
    embedding(m_space, inputs, tables.wte, positions, shape.length, branch);
  }
  for (std::int64_t l = 0; l < m_config.layers; ++l) {
    Use const use(m_access, GptUnits::block(l), unit_after(l));
    auto const weights = m_parameters.block(l, use.data());
    auto const& block = m_blocks[std::size_t(l)];
    Owner<T> const* const stream = l == 0 ? nullptr : &m_blocks[std::size_t(l) - 1].ln_2.residual;
    norm_forward(branch, stream, weights.ln_1, row_dropout(place, places_per_block * l + before_ln_1, shape), shape,
                 block.ln_1);
    block_forward(l, weights, shape, place, before);
    gemm_bias(m_space, Matrix<T>(block.mlp_activation.data(), rows, 4 * width), weights.mlp_out.weight,
              weights.mlp_out.bias, branch);
  }
  Use const use(m_access, last_norm, GptUnits::tables);
  norm_forward(branch, &m_blocks.back().ln_2.residual, m_parameters.last_norm(m_config.layers, use.data()),
               row_dropout(place, places_per_block * m_config.layers, shape), shape, m_ln_f);
}

// From behind the first norm of a block to the activation in its MLP: what its backward pass needs
template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::block_forward(std::int64_t layer,
                                                typename GptTensors<ExecutionSpace, T>::Block const& weights,
                                                Shape const& shape, DropoutPlace const& place, std::int64_t before) {
  std::size_t const rows = std::size_t(shape.rows), width = std::size_t(m_config.width);
  std::size_t const first = std::size_t(before);
  Shape const seen{shape.sequences, shape.length + before, shape.rows + before};
  Matrix<T> const branch(m_branch.data(), rows, width);
  auto const& block = m_blocks[std::size_t(layer)];
  gemm_bias(m_space, Matrix<T>(block.ln_1.normalised.data(), rows, width), weights.attention_in.weight,
            weights.attention_in.bias, Matrix<T>(block.qkv.data() + first * 3 * width, rows, 3 * width));
  FlashAttentionOptions options;
  options.causal = CausalMask::bottom_right;
  options.dropout = attention_dropout(place, layer, shape);
  flash_attention_forward(m_space, heads_of(block.qkv, shape, 0, before), heads_of(block.qkv, seen, 1),
                          heads_of(block.qkv, seen, 2), options, FlashAttentionExtras<ExecutionSpace, T>(),
                          heads_of_output(block.attention, shape),
                          LogSumExp(block.log_sum_exp.data(), std::size_t(shape.sequences), std::size_t(m_config.heads),
                                    std::size_t(shape.length)),
                          m_workspace);
  gemm_bias(m_space, Matrix<T>(block.attention.data(), rows, width), weights.attention_out.weight,
            weights.attention_out.bias, branch);

  norm_forward(branch, &block.ln_1.residual, weights.ln_2,
               row_dropout(place, places_per_block * layer + before_ln_2, shape), shape, block.ln_2);
  gemm_bias_gelu(m_space, Matrix<T>(block.ln_2.normalised.data(), rows, width), weights.mlp_in.weight,
                 weights.mlp_in.bias, Matrix<T>(block.mlp_in.data(), rows, 4 * width),
                 Matrix<T>(block.mlp_activation.data(), rows, 4 * width));
}

// The residual stream is there, rounded as the first norm has read it. So the norm of it, without dropout and with nothing to
// add, has the same bits as the first time.
template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::recompute_block(std::int64_t layer,
                                                  typename GptTensors<ExecutionSpace, T>::Block const& weights,
                                                  Shape const& shape, DropoutPlace const& place) {
  Kokkos::Profiling::ScopedRegion region("Sporos::gpt::recompute");
  NormActivations const& saved = m_blocks[std::size_t(layer)].ln_1;
  Matrix<T> const stream(saved.residual.data(), std::size_t(shape.rows), std::size_t(m_config.width));
  norm_forward(stream, nullptr, weights.ln_1, Dropout{}, shape, saved);
  block_forward(layer, weights, shape, place);
}

// The output layer and the loss, a chunk of rows at a time; with a gradient_scale also their backward pass, which leaves the
// gradient of the normalised stream in m_narrow.
template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::head(Tokens const& targets, Shape const& shape, Loss const& loss,
                                       double const* gradient_scale) {
  std::size_t const width = std::size_t(m_config.width), vocabulary = std::size_t(m_config.vocabulary);
  std::optional<std::size_t> const next =
      gradient_scale ? std::optional(GptUnits::last_norm(m_config.layers)) : std::nullopt;
  Use const use(m_access, GptUnits::tables, next);
  Matrix<T> const wte = m_parameters.tables(use.data()).wte;
  Matrix<Compute> wte_gradient;
  if (gradient_scale) wte_gradient = m_gradients.tables(m_access.gradients(GptUnits::tables)).wte;
  std::int64_t const chunk = chunk_rows(m_max_sequences * m_max_length);
  for (std::int64_t begin = 0; begin < shape.rows; begin += chunk) {
    std::size_t const rows = std::size_t(std::min(chunk, shape.rows - begin));
    Matrix<T> const x(m_ln_f.normalised.data() + std::size_t(begin) * width, rows, width);
    Matrix<Compute> const logits(m_logits.data(), rows, vocabulary);
    Tokens const wanted = Kokkos::subview(targets, Kokkos::pair<std::size_t, std::size_t>(begin, begin + rows));
    Vector<Compute> const losses(m_losses.data() + begin, rows), log_sum_exp(m_log_sum_exp.data() + begin, rows);

    gemm(m_space, Transpose::no, Transpose::yes, 1.0, x, wte, 0.0, logits);
    cross_entropy(m_space, logits, wanted, losses, log_sum_exp);
    if (!gradient_scale) continue;
    Matrix<T> const logits_gradient(m_logits_gradient.data(), rows, vocabulary);
    cross_entropy_backward(m_space, logits, wanted, log_sum_exp, *gradient_scale, logits_gradient);
    gemm(m_space, Transpose::yes, Transpose::no, 1.0, logits_gradient, x, 1.0, wte_gradient);
    gemm(m_space, Transpose::no, Transpose::no, 1.0, logits_gradient, wte, 0.0,
         Matrix<T>(m_narrow.data() + std::size_t(begin) * width, rows, width));
  }
  sum(m_space, Vector<Compute>(m_losses.data(), std::size_t(shape.rows)), loss, m_workspace);
}

// dx = dy·Wᵀ, and adds xᵀ·dy and the column sums of dy to the gradients
template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::linear_backward(Matrix<T> const& x, Matrix<T> const& dy,
                                                  typename GptTensors<ExecutionSpace, T>::Linear const& linear,
                                                  typename GptTensors<ExecutionSpace, Compute>::Linear const& gradient,
                                                  Matrix<T> const& dx) {
  gemm(m_space, Transpose::yes, Transpose::no, 1.0, x, dy, 1.0, gradient.weight);
  column_sums(m_space, dy, gradient.bias, m_workspace);
  gemm(m_space, Transpose::no, Transpose::yes, 1.0, dy, linear.weight, 0.0, dx);
}

// From the gradient of the normalised stream in m_narrow, and of the residual stream behind it in m_residual_gradient (nothing is
// behind the last norm), to that of the residual stream before it, in place, and of the branch, in m_dbranch.
template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::norm_backward(bool last, typename GptTensors<ExecutionSpace, T>::Norm const& norm,
                                                typename GptTensors<ExecutionSpace, Compute>::Norm const& gradient,
                                                Dropout const& dropout, Shape const& shape,
                                                NormActivations const& saved) {
  std::size_t const rows = std::size_t(shape.rows), width = std::size_t(m_config.width);
  Matrix<T> const dresidual(m_residual_gradient.data(), rows, width);
  Matrix<T> const behind(m_residual_gradient.data(), last ? 0 : rows, width);
  // Without dropout the branch's gradient is the stream's: one buffer less to write.
  m_dbranch = Matrix<T>(dropout.active() ? m_branch_gradient.data() : m_residual_gradient.data(), rows, width);
  residual_dropout_layernorm_backward(
      m_space, Matrix<T>(m_narrow.data(), rows, width), behind, Matrix<T>(saved.residual.data(), rows, width),
      norm.weight, Vector<Compute>(saved.mean.data(), rows), Vector<Compute>(saved.rstd.data(), rows), dropout,
      m_dbranch, dresidual, gradient.weight, gradient.bias, m_workspace);
}

template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::backward(Tokens const& inputs, Shape const& shape, DropoutPlace const& place) {
  std::size_t const last_norm = GptUnits::last_norm(m_config.layers);
  {
    Use const use(m_access, last_norm, GptUnits::block(m_config.layers - 1));
    norm_backward(true, m_parameters.last_norm(m_config.layers, use.data()),
                  m_gradients.last_norm(m_config.layers, m_access.gradients(last_norm)),
                  row_dropout(place, places_per_block * m_config.layers, shape), shape, m_ln_f);
  }
  m_access.ready(last_norm);
  for (std::int64_t l = m_config.layers; l-- > 0;) {
    {
      Use const use(m_access, GptUnits::block(l), unit_before(l));
      auto const weights = m_parameters.block(l, use.data());
      // The last block's are there still: nothing has been computed in their place.
      if (m_recompute && l + 1 < m_config.layers) recompute_block(l, weights, shape, place);
      block_backward(l, weights, shape, place);
    }
    m_access.ready(GptUnits::block(l));
  }
  auto const tables = m_gradients.tables(m_access.gradients(GptUnits::tables));
  embedding_backward(m_space, inputs, m_dbranch, shape.length, tables.wte, tables.wpe);
  m_access.ready(GptUnits::tables);
}

template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::block_backward(std::int64_t layer,
                                                 typename GptTensors<ExecutionSpace, T>::Block const& weights,
                                                 Shape const& shape, DropoutPlace const& place) {
  std::size_t const rows = std::size_t(shape.rows), width = std::size_t(m_config.width);
  Matrix<T> const narrow(m_narrow.data(), rows, width), wide(m_wide.data(), rows, 4 * width);
  auto const gradients = m_gradients.block(layer, m_access.gradients(GptUnits::block(layer)));
  auto const& block = m_blocks[std::size_t(layer)];

  linear_backward(Matrix<T>(block.mlp_activation.data(), rows, 4 * width), m_dbranch, weights.mlp_out,
                  gradients.mlp_out, wide);
  gelu_backward(m_space, wide, Matrix<T>(block.mlp_in.data(), rows, 4 * width), wide);
  linear_backward(Matrix<T>(block.ln_2.normalised.data(), rows, width), wide, weights.mlp_in, gradients.mlp_in, narrow);
  norm_backward(false, weights.ln_2, gradients.ln_2, row_dropout(place, places_per_block * layer + before_ln_2, shape),
                shape, block.ln_2);

  linear_backward(Matrix<T>(block.attention.data(), rows, width), m_dbranch, weights.attention_out,
                  gradients.attention_out, narrow);
  FlashAttentionOptions options;
  options.causal = CausalMask::top_left;
  options.repeatable = true;  // a resumed run ends with the same bits
  options.dropout = attention_dropout(place, layer, shape);
  flash_attention_backward(m_space, heads_of(block.qkv, shape, 0), heads_of(block.qkv, shape, 1),
                           heads_of(block.qkv, shape, 2), heads_of_output(block.attention, shape),
                           LogSumExp(block.log_sum_exp.data(), std::size_t(shape.sequences),
                                     std::size_t(m_config.heads), std::size_t(shape.length)),
                           heads_of_output(m_narrow, shape), options, heads_of(m_wide, shape, 0),
                           heads_of(m_wide, shape, 1), heads_of(m_wide, shape, 2), m_workspace);
  linear_backward(Matrix<T>(block.ln_1.normalised.data(), rows, width), Matrix<T>(m_wide.data(), rows, 3 * width),
                  weights.attention_in, gradients.attention_in, narrow);
  norm_backward(false, weights.ln_1, gradients.ln_1, row_dropout(place, places_per_block * layer + before_ln_1, shape),
                shape, block.ln_1);
}

// The same units in the same order as in forward(), head() and backward()
template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::attend(bool with_gradients) {
  std::size_t const last_norm = GptUnits::last_norm(m_config.layers);
  {
    Use const use(m_access, GptUnits::tables, GptUnits::block(0));
  }
  for (std::int64_t l = 0; l < m_config.layers; ++l) Use const use(m_access, GptUnits::block(l), unit_after(l));
  {
    Use const use(m_access, last_norm, GptUnits::tables);
  }
  {
    Use const use(m_access, GptUnits::tables, with_gradients ? std::optional(last_norm) : std::nullopt);
  }
  if (!with_gradients) return;
  {
    Use const use(m_access, last_norm, GptUnits::block(m_config.layers - 1));
  }
  m_access.ready(last_norm);
  for (std::int64_t l = m_config.layers; l-- > 0;) {
    {
      Use const use(m_access, GptUnits::block(l), unit_before(l));
    }
    m_access.ready(GptUnits::block(l));
  }
  m_access.ready(GptUnits::tables);
}

template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::loss(Tokens const& inputs, Tokens const& targets, std::int64_t length,
                                       Loss const& loss) {
  Kokkos::Profiling::ScopedRegion region("Sporos::gpt::loss");
  Shape const shape = shape_of(inputs, length);
  forward(inputs, shape, {});
  head(targets, shape, loss, nullptr);
}

template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::loss_and_gradients(Tokens const& inputs, Tokens const& targets, std::int64_t length,
                                                     double scale, DropoutPlace const& place, Loss const& loss) {
  Kokkos::Profiling::ScopedRegion region("Sporos::gpt::loss_and_gradients");
  Shape const shape = shape_of(inputs, length);
  forward(inputs, shape, place);
  head(targets, shape, loss, &scale);
  backward(inputs, shape, place);
}

template <class ExecutionSpace, class T>
void GptModel<ExecutionSpace, T>::next_token_logits(Tokens const& inputs,
                                                    Kokkos::View<Compute*, MemorySpace> const& logits,
                                                    std::int64_t before) {
  Kokkos::Profiling::ScopedRegion region("Sporos::gpt::next_token_logits");
  std::size_t const width = std::size_t(m_config.width), vocabulary = std::size_t(m_config.vocabulary);
  SPOROS_THROW_IF(logits.extent(0) != vocabulary, "logits has ", logits.extent(0), " elements, the vocabulary ",
                  vocabulary);
  Shape const shape = shape_of(inputs, std::int64_t(inputs.extent(0)));
  SPOROS_THROW_IF(before < 0 || before + shape.length > m_max_length, "there are ", shape.length, " tokens after ",
                  before, "; the model was made for ", m_max_length);
  forward(inputs, shape, {}, before);
  Use const use(m_access, GptUnits::tables, std::nullopt);
  gemm(m_space, Transpose::no, Transpose::yes, 1.0,
       Matrix<T>(m_ln_f.normalised.data() + std::size_t(shape.rows - 1) * width, 1, width),
       m_parameters.tables(use.data()).wte, 0.0, Matrix<Compute>(logits.data(), 1, vocabulary));
}

#define SPOROS_INSTANTIATE_GPT(T)                                                                     \
  template class GptModel<Kokkos::DefaultExecutionSpace, T>;                                          \
  template void initialise_gpt(Kokkos::DefaultExecutionSpace const&, GptConfig const&, std::uint64_t, \
                               ShardedState<Kokkos::DefaultExecutionSpace, T> const&);

SPOROS_INSTANTIATE_GPT(double)
SPOROS_INSTANTIATE_GPT(float)
SPOROS_INSTANTIATE_GPT(bfloat16)

template class GptTensors<Kokkos::DefaultExecutionSpace, double>;
template class GptTensors<Kokkos::DefaultExecutionSpace, float>;
template class GptTensors<Kokkos::DefaultExecutionSpace, bfloat16>;

}  // namespace Sporos::Gpt
