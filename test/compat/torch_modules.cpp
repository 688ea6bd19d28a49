// SPDX-License-Identifier: Apache-2.0
// torch_modules: trains modules of many kinds with acc::torch on all ranks, and the same modules
// with plain LibTorch: per rank one copy, whose gradients are averaged. Losses, gradient norms and
// weights must be equal, step by step. Prints "trained".
//   torch_modules CASE…     only these
//   torch_modules mistakes  mistakes of programs, each with its message; one rank
//   torch_modules differ | order | dies | killed | hangs  faults of one of two ranks
#include <acc/runtime/checkpoint_series.hpp>
#include <acc/torch.hpp>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <regex>
#include <set>

namespace nn = torch::nn;
using acc::torch::call;
using torch::Tensor;

namespace {

constexpr int kSteps = 2;
constexpr int64_t kRows = 4, kSize = 8;

/// A module with one input, whose output is a loss or is made one.
struct Net : nn::Module {
  virtual Tensor forward(const Tensor& x) = 0;
  bool is_reference = false;
};
using NetPtr = std::shared_ptr<Net>;

nn::Sequential mlp() {
  return nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({kSize})), nn::Linear(kSize, 2 * kSize),
                        nn::GELU(), nn::Linear(2 * kSize, kSize));
}

struct Chain : Net {
  Tensor forward(const Tensor& x) override { return call(layers, x); }
  nn::Sequential layers = register_module("layers", mlp());
};

/// Residual blocks in a ModuleList, as the default choice of units expects.
struct Blocks : Net {
  explicit Blocks(int count = 3) {
    for (int i = 0; i < count; ++i) {
      blocks->push_back(mlp());
    }
  }
  virtual Tensor run(size_t i, const Tensor& x) { return call(blocks[i]->as<nn::Sequential>(), x); }
  Tensor forward(const Tensor& input) override {
    Tensor x = first(input);
    for (size_t i = 0; i < blocks->size(); ++i) {
      x = x + run(i, x);
    }
    return x;
  }
  nn::Linear first = register_module("first", nn::Linear(kSize, kSize));
  nn::ModuleList blocks = register_module("blocks", nn::ModuleList());
};

struct Checkpointed : Blocks {
  Checkpointed() { dropout = register_module("dropout", nn::Dropout(0.5)); }
  Tensor run(size_t i, const Tensor& x) override {
    const auto block = [this, i](const Tensor& y) { return dropout(Blocks::run(i, y)); };
    return is_reference ? block(x) : acc::torch::checkpoint(block, x);
  }
  nn::Dropout dropout = nullptr;
};

struct CheckpointedPairs : Blocks {
  Tensor forward(const Tensor& input) override {
    const auto both = [this](const Tensor& y) { return run(1, run(0, y)); };
    return run(2, is_reference ? both(first(input)) : acc::torch::checkpoint(both, first(input)));
  }
};

struct Tied : Net {
  Tied() { head->weight = embedding->weight; }
  Tensor forward(const Tensor& ids) override {
    Tensor x = embedding(ids);
    for (size_t i = 0; i < blocks->size(); ++i) {
      x = x + call(blocks[i]->as<nn::Sequential>(), x);
    }
    return nn::functional::cross_entropy(head(x).flatten(0, 1), ids.flatten());
  }
  nn::Embedding embedding = register_module("embedding", nn::Embedding(11, kSize));
  nn::ModuleList blocks = register_module("blocks", nn::ModuleList(mlp(), mlp()));
  nn::Linear head = register_module("head", nn::Linear(nn::LinearOptions(kSize, 11).bias(false)));
};

struct Twice : Blocks {
  Tensor forward(const Tensor& x) override { return Blocks::forward(Blocks::forward(x)); }
};

/// Two units share a weight, which belongs to the root.
struct SharedByUnits : Blocks {
  SharedByUnits() {
    const auto linear = [this](size_t i) {
      return blocks[i]->as<nn::Sequential>()->at<nn::LinearImpl>(1).shared_from_this();
    };
    linear(1)->as<nn::Linear>()->weight = linear(0)->as<nn::Linear>()->weight;
  }
};

struct Unused : Blocks {
  Tensor forward(const Tensor& x) override {
    run(1, x);  // has no part in the loss
    return run(0, first(x));
  }
};

struct Frozen : Blocks {
  Frozen() {
    for (auto& each : blocks[1]->parameters()) {
      each.set_requires_grad(false);
    }
    first->bias.set_requires_grad(false);
    blocks[2]->as<nn::Sequential>()->at<nn::LinearImpl>(1).bias.set_requires_grad(false);
  }
};

struct Convolutions : Net {
  Tensor forward(const Tensor& x) override {
    return call(layers[1]->as<nn::Sequential>(), call(layers[0]->as<nn::Sequential>(), x));
  }
  nn::ModuleList layers = register_module(
      "layers",
      nn::ModuleList(
          nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 4, 3).padding(1)), nn::BatchNorm2d(4),
                         nn::ReLU(nn::ReLUOptions().inplace(true))),
          nn::Sequential(nn::Conv2d(nn::Conv2dOptions(4, 4, 3).stride(2).groups(2).bias(false)))));
};

struct Attention : Net {  // of [time, rows, size]
  Tensor forward(const Tensor& x) override {
    const Tensor found = std::get<0>(call(attention, x, x, x, Tensor(), false));
    return call(layer, norm(x + found), Tensor(), Tensor());
  }
  nn::MultiheadAttention attention = register_module("attention", nn::MultiheadAttention(kSize, 2));
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kSize})));
  nn::TransformerEncoderLayer layer = register_module(
      "layer", nn::TransformerEncoderLayer(
                   nn::TransformerEncoderLayerOptions(kSize, 2).dim_feedforward(16).dropout(0)));
};

/// LibTorch's modules that call others, which are units. The reference calls their own forward.
struct Encoder : Net {
  Tensor forward(const Tensor& x) override {
    return is_reference ? layers->forward(x) : call(layers, x);
  }
  nn::TransformerEncoder encoder = nn::TransformerEncoder(
      nn::TransformerEncoderOptions(
          nn::TransformerEncoderLayerOptions(kSize, 2).dim_feedforward(16).dropout(0), 2)
          .norm(nn::AnyModule(nn::LayerNorm(nn::LayerNormOptions({kSize})))));
  nn::Sequential layers =
      register_module("layers", nn::Sequential(nn::Linear(kSize, kSize), encoder));
};

struct Translation : Net {
  Tensor forward(const Tensor& x) override {
    const Tensor mask = nn::TransformerImpl::generate_square_subsequent_mask(x.size(0));
    const Tensor tgt = x.flip(0);
    return is_reference ? transformer->forward(x, tgt, {}, mask)
                        : call(transformer, x, tgt, Tensor(), mask);
  }
  nn::Transformer transformer =
      register_module("transformer", nn::Transformer(nn::TransformerOptions(kSize, 2)
                                                         .num_encoder_layers(2)
                                                         .num_decoder_layers(2)
                                                         .dim_feedforward(16)
                                                         .dropout(0)));
};

struct Recurrent : Net {
  Tensor forward(const Tensor& x) override { return out(std::get<0>(call(lstm, x))); }
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(kSize, 6).batch_first(true)));
  nn::Linear out = register_module("out", nn::Linear(6, 2));
};

struct InnerImpl : nn::Module {
  std::tuple<std::map<std::string, Tensor>, std::vector<Tensor>> forward(
      const Tensor& x, const std::optional<Tensor>& bias, int times) {
    return {{{"y", times * linear(x) * factor}}, {bias.value() + offset, offset}};
  }
  nn::Linear linear = register_module("linear", nn::Linear(kSize, kSize));
  Tensor factor = register_parameter("factor", torch::tensor(0.5F));
  Tensor offset = register_parameter("offset", torch::ones(kSize));
};
TORCH_MODULE(Inner);

/// Units with several arguments and nested outputs, a scalar parameter, a unit that returns its
/// parameter, and changes of outputs in place.
struct ManyOutputs : Net {
  Tensor forward(const Tensor& input) override {
    Tensor x = input;
    for (size_t i = 0; i < parts->size(); ++i) {
      auto [found, more] = call(parts[i]->as<Inner>(), x, std::optional(torch::ones(kSize)), 2);
      found["y"].mul_(2.0);
      x = x.mul(1.0).relu_() + found["y"] + more[0] * more[1];
    }
    return x;
  }
  nn::ModuleList parts = register_module("parts", nn::ModuleList(Inner(), Inner()));
};

/// Parameters and a buffer that have no memory before the module is sharded.
struct ScaleImpl : nn::Module {
  explicit ScaleImpl(const Tensor& like)
      : factor(register_parameter("factor", torch::empty({kSize}, like.options()))),
        offset(register_buffer("offset", torch::empty({kSize}, like.options()))) {}
  Tensor forward(const Tensor& x) { return x * factor + offset; }
  Tensor factor, offset;
};
TORCH_MODULE(Scale);

struct Meta : Blocks {
  Tensor forward(const Tensor& x) override { return call(scale, Blocks::forward(x)); }
  Scale scale = register_module("scale", Scale(torch::empty(1, torch::kMeta)));
};
struct NoMeta : Meta {  // the same with memory
  NoMeta() {
    scale = replace_module("scale", Scale(torch::empty(1)));
    torch::nn::init::constant_(scale->factor, 0.5);
    scale->offset.fill_(2.0);
  }
};

/// Units in units.
struct Nested : Net {
  Tensor forward(const Tensor& x) override {
    return call(outer[1]->as<Blocks>(), call(outer[0]->as<Blocks>(), x));
  }
  nn::ModuleList outer = register_module(
      "outer", nn::ModuleList(std::make_shared<Blocks>(2), std::make_shared<Blocks>(2)));
};

Tensor loss_of(const Tensor& output) {
  return output.dim() == 0 ? output : output.to(torch::kFloat).square().mean();
}

Tensor plain(Net& net, const Tensor& x) {
  return loss_of(call(net, x));
}

void require_grad(nn::Module& module, bool requires_grad) {
  for (Tensor& each : module.parameters()) {
    each.set_requires_grad(requires_grad);
  }
}

using Rule =
    std::function<std::shared_ptr<torch::optim::Optimizer>(const std::vector<Tensor>& parameters)>;

std::shared_ptr<torch::optim::Optimizer> adagrad(const std::vector<Tensor>& parameters) {
  return std::make_shared<torch::optim::Adagrad>(parameters, torch::optim::AdagradOptions(0.05));
}

std::shared_ptr<torch::optim::Optimizer> rmsprop(const std::vector<Tensor>& parameters) {
  return std::make_shared<torch::optim::RMSprop>(
      parameters, torch::optim::RMSpropOptions(1e-3).momentum(0.9).weight_decay(0.1));
}

struct Case {
  std::string name;
  std::function<NetPtr()> make;
  std::function<Tensor()> input = [] { return torch::randn({kRows, kSize}); };
  std::optional<std::vector<std::string>> units = {};
  std::function<Tensor(Net&, const Tensor&)> train = plain;
  double tolerance = 2e-6;
  int micro_steps = 1;
  int accumulation = 0;  ///< gradient_accumulation_steps, if there are more than `micro_steps`
  bool unused_units = false, no_sync = false, adamw = false;
  std::function<NetPtr()> make_reference = {};  ///< absent: make
  Rule rule = {};                               ///< an optimizer of torch over the shards
  std::string checkpointing = "false";
};

Tensor sequences() {
  return torch::randn({5, kRows, kSize});
}

template <typename Made>
NetPtr make() {
  return std::make_shared<Made>();
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {.name = "a module without units", .make = make<Chain>},
      {.name = "units by class", .make = make<Chain>, .units = {{"Linear"}}},
      {.name = "units by name", .make = make<Chain>, .units = {{"layers.1", "layers.3"}}},
      {.name = "a Sequential and its children",
       .make = make<Chain>,
       .units = {{"Sequential", "Linear"}}},
      {.name = "blocks of a ModuleList", .make = make<Blocks>},
      {.name = "blocks with AdamW", .make = make<Blocks>, .tolerance = 2e-5, .adamw = true},
      {.name = "Adagrad of torch", .make = make<Frozen>, .tolerance = 2e-5, .rule = adagrad},
      {.name = "RMSprop of torch", .make = make<Blocks>, .tolerance = 2e-5, .rule = rmsprop},
      {.name = "a TransformerEncoder in a Sequential",
       .make = make<Encoder>,
       .input = sequences,
       .tolerance = 2e-5},
      {.name = "units in a Transformer",
       .make = make<Translation>,
       .input = sequences,
       .units = {{"TransformerEncoderLayer", "TransformerDecoderLayer", "TransformerEncoder",
                  "LayerNorm"}},
       .tolerance = 2e-5},
      {.name = "convolutions and BatchNorm",
       .make = make<Convolutions>,
       .input =
           [] {
             return torch::randn({kRows, 3, 6, 6});
           },
       .tolerance = 2e-5},
      {.name = "embedding with a tied head",
       .make = make<Tied>,
       .input =
           [] {
             return torch::randint(11, {kRows, 5}, torch::kLong);
           }},
      {.name = "attention",
       .make = make<Attention>,
       .input = sequences,
       .units = {{"attention", "layer"}}},
      {.name = "LSTM", .make = make<Recurrent>, .input = sequences, .units = {{"lstm"}}},
      {.name = "frozen parameters", .make = make<Frozen>},
      {.name = "a block used twice", .make = make<Twice>},
      {.name = "a weight of two units", .make = make<SharedByUnits>},
      {.name = "an unused unit", .make = make<Unused>, .unused_units = true},
      {.name = "many outputs", .make = make<ManyOutputs>},
      {.name = "units in units", .make = make<Nested>, .units = {{"Blocks", "Sequential"}}},
      {.name = "two forwards before the backward",
       .make = make<Blocks>,
       .train = [](Net& net, const Tensor& x) { return plain(net, x) + plain(net, 2 * x); }},
      {.name = "two losses, each with its backward",
       .make = make<Blocks>,
       .train =
           [](Net& net, const Tensor& x) {
             const Tensor first = plain(net, x);
             const Tensor second = plain(net, 2 * x);
             first.backward();
             return second;
           }},
      {.name = "two backwards of a forward",
       .make = make<Blocks>,
       .train =
           [](Net& net, const Tensor& x) {
             const Tensor output = call(net, x);
             loss_of(output.abs()).backward({}, /*retain_graph=*/true);
             return loss_of(output);
           }},
      {.name = "a forward without a backward",
       .make = make<Blocks>,
       .train =
           [](Net& net, const Tensor& x) {
             const Tensor loss = plain(net, x);
             plain(net, x);
             return loss;
           }},
      {.name = "autograd::grad of an input",
       .make = make<Blocks>,
       .train =
           [](Net& net, const Tensor& given) {
             const Tensor x = given.clone().requires_grad_();
             const Tensor of_x = torch::autograd::grad({plain(net, x)}, {x})[0];
             return plain(net, given + of_x);
           }},
      {.name = "frozen for a phase",
       .make = make<Blocks>,
       .train =
           [](Net& net, const Tensor& given) {
             const Tensor x = given.clone().requires_grad_();
             require_grad(net, false);
             const Tensor first = plain(net, x);
             const Tensor second = plain(net, 2 * x);
             first.backward();
             require_grad(net, true);
             second.backward();  // its forward was without gradients of parameters
             return plain(net, x.grad());
           }},
      {.name = "a frozen part",
       .make = make<Blocks>,
       .train =
           [](Net& net, const Tensor& x) {
             require_grad(*net.as<Blocks>()->blocks[1], false);
             return plain(net, x);
           },
       .tolerance = 2e-5,
       .rule = rmsprop},
      {.name = "an incomplete group of micro-steps",
       .make = make<Blocks>,
       .micro_steps = 3,
       .accumulation = 5},
      {.name = "the same with no_sync",
       .make = make<Blocks>,
       .micro_steps = 2,
       .accumulation = 5,
       .no_sync = true},
      {.name = "the same with an optimizer of torch",
       .make = make<Frozen>,
       .tolerance = 2e-5,
       .micro_steps = 3,
       .accumulation = 5,
       .rule = adagrad},
      {.name = "evaluation between steps",
       .make = make<Blocks>,
       .train =
           [](Net& net, const Tensor& x) {
             net.eval();
             {
               const c10::InferenceMode inference;
               call(net, x);
             }
             {
               const torch::NoGradGuard no_grad;
               call(net, x);
             }
             net.train();
             return plain(net, x);
           }},
      {.name = "gradient accumulation", .make = make<Blocks>, .micro_steps = 2},
      {.name = "no_sync", .make = make<Blocks>, .micro_steps = 2, .no_sync = true},
      {.name = "checkpoint", .make = make<Checkpointed>},
      {.name = "checkpoint in a unit",
       .make = make<Checkpointed>,
       .units = {std::vector<std::string>()}},
      {.name = "checkpoint around two units", .make = make<CheckpointedPairs>},
      {.name = "activation checkpointing of the launcher",
       .make = make<Blocks>,
       .checkpointing = "true"},
      {.name = "activation checkpointing of units in units",
       .make = make<Nested>,
       .units = {{"Blocks", "Sequential"}},
       .checkpointing = "true"},
      {.name = "the meta device",
       .make = make<Meta>,
       .units = {{"Sequential", "scale"}},
       .make_reference = make<NoMeta>},
  };
  return all;
}

void expect(bool holds, const std::string& what) {
  if (!holds) {
    throw std::runtime_error(what);
  }
}

void expect_near(double found, double expected, double tolerance, const std::string& what) {
  expect(std::abs(found - expected) <= tolerance * std::max(1.0, std::abs(expected)),
         what + ": " + std::to_string(found) + ", expected " + std::to_string(expected));
}

NetPtr make_seeded(const std::function<NetPtr()>& make, uint64_t seed) {
  torch::manual_seed(seed);
  return make();
}

/// Data parallel training in plain LibTorch: one copy of the module for each rank.
class Reference {
 public:
  Reference(const Case& in_case, int world, at::Device device) : case_(in_case) {
    for (int rank = 0; rank < world; ++rank) {
      copies.push_back(
          make_seeded(in_case.make_reference ? in_case.make_reference : in_case.make, 3));
      copies.back()->is_reference = true;
      copies.back()->to(device);
      std::vector<Tensor> distinct;
      for (const Tensor& each : copies.back()->parameters()) {
        if (std::none_of(distinct.begin(), distinct.end(),
                         [&](const Tensor& other) { return each.is_same(other); })) {
          distinct.push_back(each);
        }
      }
      parameters_.push_back(distinct);
      if (case_.rule) {
        optimizers_.push_back(case_.rule(distinct));
      } else if (case_.adamw) {
        optimizers_.push_back(
            std::make_shared<torch::optim::AdamW>(distinct, torch::optim::AdamWOptions(1e-2)));
      } else {
        optimizers_.push_back(std::make_shared<torch::optim::SGD>(
            distinct, torch::optim::SGDOptions(0.05).momentum(0.9)));
      }
    }
  }

  /// batches: for each rank those of its micro-steps. Returns the mean loss and the norm.
  std::pair<double, double> step(const std::vector<std::vector<Tensor>>& batches) {
    double loss = 0.0;
    const auto count = static_cast<double>(copies.size() * batches[0].size());
    for (size_t rank = 0; rank < copies.size(); ++rank) {
      torch::manual_seed(50 + rank);
      for (const Tensor& input : batches[rank]) {
        const Tensor found = case_.train(*copies[rank], input);
        loss += found.item<double>() / count;
        found.backward();
      }
    }
    std::vector<Tensor> means;
    for (size_t i = 0; i < parameters_[0].size(); ++i) {
      if (parameters_[0][i].requires_grad()) {
        Tensor mean = torch::zeros_like(parameters_[0][i]);
        for (const auto& each : parameters_) {
          mean += each[i].grad().defined() ? each[i].grad() / count : torch::zeros_like(mean);
        }
        for (const auto& each : parameters_) {
          each[i].mutable_grad() = mean.clone();
        }
        means.push_back(mean.flatten());
      }
    }
    for (const auto& each : optimizers_) {
      each->step();
      each->zero_grad();
    }
    return {loss, torch::cat(means).norm().item<double>()};
  }

  std::vector<NetPtr> copies;

 private:
  const Case& case_;
  std::vector<std::vector<Tensor>> parameters_;
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers_;
};

/// A sharded module and its optimizer.
struct Trained {
  acc::torch::Sharded sharded;
  acc::Optimizer optimizer;
};

Trained shard(const Case& each, const NetPtr& net, const acc::Runtime& runtime) {
  const acc::torch::ShardOptions options{.units = each.units,
                                         .unused_units = each.unused_units,
                                         .initialize = [](const std::string& name, Tensor& values) {
                                           values.fill_(name == "scale.factor" ? 0.5 : 2.0);
                                         }};
  const acc::torch::Sharded sharded = acc::torch::fully_shard(net, runtime, options);
  acc::Model& model = sharded.model();
  if (each.rule) {
    return {sharded, sharded.optimizer([&](const acc::torch::Shards& shards) {
              return each.rule(shards.values());
            })};
  }
  return {sharded, each.adamw ? model.optimizer(acc::AdamW{.lr = 1e-2})
                              : model.optimizer(acc::Sgd{.lr = 0.05, .momentum = 0.9})};
}

/// Continues in another copy of the module from a checkpoint, of a series or of Sharded::save.
void resume(const Case& each, acc::Runtime& runtime, NetPtr& net, std::optional<Trained>& trained,
            bool by_series) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("torch_modules." + std::to_string(::getppid()));  // the launcher's
  const acc::CheckpointSeries series(runtime, folder, {});
  if (by_series) {
    trained->sharded.write_buffers();
    series.save(trained->sharded.model(), trained->optimizer, {});
  } else {
    trained->sharded.save(folder, trained->optimizer);
  }
  trained.reset();
  net = make_seeded(each.make, 100);
  trained = shard(each, net, runtime);
  if (by_series) {
    trained->sharded.write_buffers();
    const bool resumed = series.resume(trained->sharded.model(), trained->optimizer).has_value();
    expect(resumed, "the series has a checkpoint");
    trained->sharded.read_buffers();
  } else {
    trained->sharded.load(folder, trained->optimizer);
  }
  runtime.barrier();
  if (runtime.rank() == 0) {
    std::filesystem::remove_all(folder);
  }
}

void train(const Case& each, acc::Runtime& runtime) {
  const auto rank = static_cast<size_t>(runtime.rank());
  const at::Device device(runtime.device().kind == acc::settings::Device::cpu ? at::kCPU
                                                                              : at::kCUDA);
  Reference reference(each, runtime.world_size(), device);
  NetPtr net = make_seeded(each.make, 3 + rank);  // rank 0's values are used
  std::optional<Trained> trained = shard(each, net, runtime);
  for (int step = 0; step < kSteps + (each.rule ? 1 : 0); ++step) {
    torch::manual_seed(7 + static_cast<uint64_t>(step));
    std::vector<std::vector<Tensor>> batches(reference.copies.size());
    for (auto& of_rank : batches) {
      for (int i = 0; i < each.micro_steps; ++i) {
        of_rank.push_back(each.input().to(device));
      }
    }
    torch::manual_seed(50 + rank);
    double loss = 0.0;
    for (int i = 0; i < each.micro_steps; ++i) {
      const auto no_sync =
          each.no_sync && i + 1 < each.micro_steps ? trained->sharded.model().no_sync() : nullptr;
      const Tensor found = each.train(*net, batches[rank][static_cast<size_t>(i)]);
      loss += found.item<double>() / each.micro_steps;
      found.backward();
    }
    loss = runtime.mean(loss);
    const double norm = trained->optimizer.step().grad_norm;
    const auto [expected_loss, expected_norm] = reference.step(batches);
    expect_near(loss, expected_loss, each.tolerance, "loss of step " + std::to_string(step));
    expect_near(norm, expected_norm, each.tolerance, "norm of step " + std::to_string(step));
    if (each.rule && step < 2) {
      resume(each, runtime, net, trained, step == 1);
    }
  }
  auto found = trained->sharded.state_dict(/*rank0_only=*/false);
  const auto difference = [](const Tensor& a, const Tensor& b) {
    return (a.cpu().to(torch::kDouble) - b.cpu().to(torch::kDouble)).abs().max().item<double>();
  };
  // The reference's names of tied weights remain apart in its dictionaries.
  for (const auto& item : reference.copies[rank]->named_parameters()) {
    expect(found.contains(item.key()), "no " + item.key() + " in the state dict");
    if (item.key() != "head.weight" && item.key() != "blocks.1.1.weight") {
      expect_near(difference(found[item.key()], item.value()), 0, 10 * each.tolerance, item.key());
    }
  }
  const auto buffers = net->named_buffers();
  for (const auto& item : reference.copies[rank]->named_buffers()) {
    expect(found[item.key()].scalar_type() == item.value().scalar_type(), item.key() + ": dtype");
    expect_near(difference(buffers[item.key()], item.value()), 0, 10 * each.tolerance, item.key());
  }
}

/// A generator and a discriminator, each with its optimizer. The gradient of the generator passes
/// through the discriminator, which is frozen meanwhile, or drops its own. Losses are those of
/// plain LibTorch on the rows of all ranks.
struct Gan {
  explicit Gan(acc::Runtime* in_runtime) : runtime(in_runtime) {
    const acc::torch::ShardOptions linears = {.units = {{"Linear"}}};
    for (const auto& net : {generator, discriminator}) {
      if (runtime != nullptr) {
        sharded.push_back(acc::torch::fully_shard(net, *runtime, linears));
        ours.push_back(sharded.back().model().optimizer(acc::Sgd{.lr = 0.1}));
      } else {
        theirs.push_back(std::make_shared<torch::optim::SGD>(net->parameters(), 0.1));
      }
    }
  }
  [[nodiscard]] Tensor rows(const Tensor& all) const {
    return runtime == nullptr ? all.flatten(0, 1) : all[runtime->rank()];
  }
  void step(size_t i) { runtime == nullptr ? void(theirs[i]->step()) : void(ours[i].step()); }
  void zero_grad(size_t i) {
    if (of_modules || runtime == nullptr) {
      (i == 0 ? generator : discriminator)->zero_grad();
    } else {
      ours[i].zero_grad();
    }
  }
  /// Returns the sum of both losses.
  double train(const Tensor& noise, const Tensor& real, bool freezes) {
    const Tensor given = rows(noise).clone().requires_grad_();
    const Tensor slope = torch::autograd::grad({call(generator, given).sum()}, {given})[0];
    const Tensor fake = call(generator, (given + 0.1 * slope.sign()).detach());
    zero_grad(1);
    const Tensor first =
        call(discriminator, fake.detach()).mean() - call(discriminator, rows(real)).mean();
    first.backward();
    step(1);
    zero_grad(0);
    zero_grad(1);
    require_grad(*discriminator, !freezes);
    const Tensor second = -call(discriminator, fake).mean();
    second.backward();
    step(0);
    require_grad(*discriminator, true);
    return (first + second).item<double>();
  }

  acc::Runtime* runtime;
  bool of_modules = false;  ///< zero_grad() of the modules drops gradients, not the optimizers'
  nn::Sequential generator{nn::Linear(3, 8), nn::Tanh(), nn::Linear(8, 4)};
  nn::Sequential discriminator{nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 1)};
  std::vector<acc::torch::Sharded> sharded = {};
  std::vector<acc::Optimizer> ours = {};
  std::vector<std::shared_ptr<torch::optim::SGD>> theirs = {};
};

void train_gans(acc::Runtime& runtime) {
  for (const auto& [way, freezes, of_modules] : {std::tuple{"frozen", true, false},
                                                 {"zero_grad", false, false},
                                                 {"zero_grad of modules", false, true}}) {
    torch::manual_seed(3);
    Gan plain_gan(nullptr);
    torch::manual_seed(3);
    Gan gan(&runtime);
    gan.of_modules = of_modules;
    torch::manual_seed(5);
    for (int step = 0; step < 3; ++step) {
      const Tensor noise = torch::randn({runtime.world_size(), 6, 3});
      const Tensor real = torch::randn({runtime.world_size(), 6, 4});
      expect_near(runtime.mean(gan.train(noise, real, freezes)),
                  plain_gan.train(noise, real, freezes), 1e-5,
                  std::string(way) + " in step " + std::to_string(step));
    }
  }
}

void set(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);
}

void train_all(const std::vector<std::string>& wanted) {
  // Strategy, and how the ranks of a machine gather: "copy" behaves as several machines do.
  const std::vector<std::pair<std::string, std::string>> modes = {{"FULL_SHARD", "share"},
                                                                  {"FULL_SHARD", "copy"},
                                                                  {"SHARD_GRAD_OP", "copy"},
                                                                  {"NO_SHARD", "share"}};
  for (const auto& [strategy, gather] : modes) {
    set("FSDP_SHARDING_STRATEGY", strategy);
    set("ACC_SHM_GATHER", gather);
    if (wanted.empty() || std::ranges::find(wanted, "GAN") != wanted.end()) {
      set("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1");
      set("FSDP_ACTIVATION_CHECKPOINTING", "false");
      acc::Runtime runtime = acc::Runtime::from_environment();
      train_gans(runtime);
    }
    // The strategies differ in the runtime, and the bridge in how it gathers.
    const bool few = wanted.empty() && strategy != "FULL_SHARD";
    for (std::size_t i = 0; i < cases().size(); i += few ? 5 : 1) {
      const Case& each = cases()[i];
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), each.name) == wanted.end()) {
        continue;
      }
      set("ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
          std::to_string(std::max(each.micro_steps, each.accumulation)));
      set("FSDP_ACTIVATION_CHECKPOINTING", each.checkpointing);
      try {
        acc::Runtime runtime = acc::Runtime::from_environment();
        train(each, runtime);
      } catch (...) {
        std::cout << "failed: " << each.name << ", " << strategy << ' ' << gather << std::endl;
        throw;
      }
    }
  }
  std::cout << "trained" << std::endl;
}

// ---- mistakes

using acc::torch::fully_shard;
using acc::torch::Sharded;

const acc::torch::ShardOptions kLinears = {.units = {{"Linear"}}};

struct Pair : Net {
  Tensor forward(const Tensor& x) override { return call(second, torch::relu(call(first, x))); }
  nn::Linear first = register_module("first", nn::Linear(4, 4));
  nn::Linear second = register_module("second", nn::Linear(4, 4));
};

struct AppendingImpl : nn::Module {
  Tensor forward(const Tensor& x, const std::shared_ptr<std::vector<Tensor>>& kept) {
    kept->push_back(linear(x));
    return torch::cat(*kept);
  }
  nn::Linear linear = register_module("linear", nn::Linear(4, 4));
};
TORCH_MODULE(Appending);

struct WithCache : Net {
  Tensor forward(const Tensor& x) override {
    return call(block, first(x), std::make_shared<std::vector<Tensor>>());
  }
  nn::Linear first = register_module("first", nn::Linear(4, 4));
  Appending block = register_module("block", Appending());
};

struct ClampingImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    const torch::NoGradGuard no_grad;
    weight.clamp_(-0.1, 0.1);
    return x * weight;
  }
  Tensor weight = register_parameter("weight", torch::ones(4));
};
TORCH_MODULE(Clamping);

acc::Runtime runtime_of() {
  return acc::Runtime::from_environment();
}

/// A sharded pair, with one backward if `trained`.
struct Trial {
  explicit Trial(const acc::torch::ShardOptions& options = kLinears)
      : sharded(fully_shard(net, runtime_of(), options)) {}
  Tensor loss(const Tensor& x = torch::ones({2, 4})) const { return call(net, x).sum(); }
  std::shared_ptr<Pair> net = std::make_shared<Pair>();
  Sharded sharded;
};

struct Mistake {
  std::string name;
  std::function<void()> make;
  std::string message;
};

template <typename Change>
auto changed(Change change) {
  return [change] {
    const Trial trial;
    change(*trial.net);
    trial.loss();
  };
}

const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> all = {
      {"a parameter outside of its unit", [] { std::cout << Trial().net->first->weight.sum(); },
       "parameter 'first.weight' is sharded and has values only while a call of its unit 'first'"},
      {"gradients clipped by torch",
       [] {
         const Trial trial;
         trial.loss().backward();
         nn::utils::clip_grad_norm_(trial.net->parameters(), 1.0);
       },
       "grad of the sharded parameter 'first.weight': the runtime holds .*set_clip_norm"},
      {"an optimizer of the parameters",
       [] {
         const Trial trial;
         torch::optim::SGD optimizer(trial.net->parameters(), 0.1);
         optimizer.zero_grad();
         trial.loss().backward();
         optimizer.step();
       },
       "parameter 'first.weight' is sharded and has values only"},
      {"zero_grad of a submodule",
       [] {
         const Trial trial;
         trial.loss().backward();
         trial.net->second->zero_grad();
         trial.loss();
       },
       "zero_grad.. has dropped the gradient of parameter 'second.*', and not that of 'first"},
      {"other data", changed([](Pair& net) { net.second->bias.set_data(torch::ones(4)); }),
       "parameter 'second.bias' was changed after fully_shard"},
      {"other data, saved",
       [] {
         const Trial trial;
         trial.net->second->bias.set_data(torch::ones(4));
         std::ignore = trial.sharded.state_dict();
       },
       "parameter 'second.bias' was changed after fully_shard"},
      {"a forward that writes a parameter",
       [] {
         nn::Sequential net(nn::Linear(4, 4), Clamping());
         const Sharded sharded = fully_shard(net, runtime_of(), {.units = {{"Clamping"}}});
         call(net, torch::ones({2, 4}));
       },
       "parameter '1.weight' was changed after fully_shard, in place"},
      {"weights loaded between forward and backward",
       [] {
         const Trial trial;
         const std::string path = "torch_modules." + std::to_string(::getpid()) + ".safetensors";
         trial.sharded.export_weights(path);
         const Tensor loss = trial.loss();
         trial.sharded.load_weights(path);
         std::filesystem::remove(path);
         loss.backward();
       },
       "only 0 forward scopes .*since the last step or load"},
      {"forward instead of call",
       [] {
         Trial().net->first->forward(torch::ones({2, 4}));
       },
       "call the unit through acc::torch::call"},
      {"a gradient outside of its unit",
       [] {
         const Trial trial;
         Tensor kept = trial.net->first->weight.t();
         trial.loss().backward();
         kept.sum().backward();
       },
       "is sharded and has values only"},
      {"a new parameter",
       changed([](Pair& net) { net.first->register_parameter("more", torch::ones(4)); }),
       "module 'first' has got or lost a parameter"},
      {"a new module", changed([](Pair& net) { net.register_module("more", nn::ReLU()); }),
       "has got or lost a parameter or a submodule"},
      {"trained later",
       [] {
         const auto net = std::make_shared<Pair>();
         net->second->bias.set_requires_grad(false);
         const Sharded sharded = fully_shard(net, runtime_of(), kLinears);
         net->second->bias.set_requires_grad(true);
         call(net, torch::ones({2, 4}));
       },
       "parameter 'second.bias' cannot require a gradient: it was declared frozen"},
      {"frozen for a step of AdamW",
       [] {
         const Trial trial;
         acc::Optimizer optimizer = trial.sharded.model().optimizer(acc::AdamW{});
         trial.net->second->bias.set_requires_grad(false);
         trial.loss().backward();
         optimizer.step();
       },
       "parameter 'second.bias' did not require a gradient .*Sharded::optimizer"},
      {"a recomputed forward that changes its argument",
       [] {
         set("ACCELERATE_USE_FSDP", "true");
         set("FSDP_ACTIVATION_CHECKPOINTING", "true");
         const auto net = std::make_shared<WithCache>();
         const Sharded sharded = fully_shard(net, runtime_of(), {.units = {{"Appending"}}});
         set("FSDP_ACTIVATION_CHECKPOINTING", "false");
         call(net, torch::ones({2, 4})).sum().backward();
       },
       "unit 'block': its forward, which fsdp_activation_checkpointing .* changes an argument"},
      {"another dtype", changed([](Pair& net) { net.to(torch::kHalf); }),
       "dtype and device cannot be changed"},
      {"torch::save",
       [] {
         std::ostringstream out;
         torch::save(Trial().net, out);
       },
       "Sharded::state_dict"},
      {"create_graph", [] { Trial().loss().backward({}, true, true); }, "create_graph"},
      {"after a failed backward",
       [] {
         const Trial trial;
         try {
           Tensor x = call(trial.net->first, torch::ones({2, 4}));
           x.register_hook([](const at::TensorBase&) -> void { throw std::runtime_error("hook"); });
           call(trial.net->second, x).sum().backward();
         } catch (const std::runtime_error&) {
           trial.loss();
         }
       },
       "a backward of this module has failed"},
      {"an unused unit",
       [] {
         const Trial trial;
         acc::Optimizer optimizer = trial.sharded.model().optimizer(acc::Sgd{});
         call(trial.net->second, torch::ones({2, 4}));
         call(trial.net->first, torch::ones({2, 4})).sum().backward();
         optimizer.step();
       },
       "unit 'second'"},
      {"too many micro-steps",
       [] {
         const Trial trial;
         trial.loss().backward();
         trial.loss().backward();
       },
       "gradient_accumulation_steps is 1"},
      {"sharded twice",
       [] {
         const Trial trial;
         std::ignore = fully_shard(trial.net, runtime_of());
       },
       "sharded already"},
      {"a unit in a module that calls it itself",
       [] {
         const nn::Sequential net(nn::MultiheadAttention(4, 2));
         std::ignore = fully_shard(net, runtime_of(), {.units = {{"0.out_proj"}}});
       },
       "'0.out_proj' is in a MultiheadAttention, whose forward calls it directly"},
      {"a rate of an optimizer of torch",
       [] {
         const Trial trial;
         trial.sharded
             .optimizer([](const acc::torch::Shards& shards) { return adagrad(shards.values()); })
             .set_lr(0.1);
       },
       "set them there"},
      {"an exception of an optimizer of torch",
       [] {
         const Trial trial;
         acc::Optimizer optimizer = trial.sharded.optimizer([](const acc::torch::Shards& shards) {
           return std::make_shared<torch::optim::LBFGS>(shards.values());
         });
         trial.loss().backward();
         optimizer.step();
       },
       "LBFGS|closure"},
      {"no such unit", [] { Trial trial({.units = {{"Block"}}}); },
       "'Block' is no name or class of a submodule; its classes are Linear, Pair"},
      {"two dtypes",
       [] {
         nn::Sequential net(nn::Linear(4, 4), nn::Linear(4, 4));
         net[1]->to(torch::kBFloat16);
         std::ignore = fully_shard(net, runtime_of());
       },
       R"(Float \('0.weight'\), BFloat16 \('1.weight'\))"},
      {"a dtype",
       [] {
         nn::Linear net(4, 4);
         net->to(torch::kDouble);
         std::ignore = fully_shard(net, runtime_of());
       },
       "'weight' is Double"},
      {"no parameters", [] { std::ignore = fully_shard(nn::Sequential(nn::ReLU()), runtime_of()); },
       "no parameters"},
      {"a new buffer",
       [] {
         const Trial trial;
         trial.net->register_buffer("more", torch::ones(1));
         trial.sharded.write_buffers();
       },
       "buffer 'more' is new since fully_shard"},
      {"a buffer that was changed",
       [] {
         const Scale net(torch::ones(1));
         const Sharded sharded = fully_shard(net, runtime_of());
         net->offset.resize_({3});
         sharded.write_buffers();
       },
       "buffer 'offset' has another shape or dtype"},
      {"meta without values",
       [] {
         std::ignore = fully_shard(Scale(torch::empty(1, torch::kMeta)), runtime_of(),
                                   {.initialize = [](const std::string& name, Tensor& values) {
                                     if (name == "factor") {
                                       values.fill_(1.0);
                                     } else {
                                       values[0].fill_(1.0);
                                     }
                                   }});
       },
       "'offset' is on the meta device, and ShardOptions::initialize leaves it, or a part of it"},
      {"meta without initialize",
       [] { std::ignore = fully_shard(Scale(torch::empty(1, torch::kMeta)), runtime_of()); },
       "'factor' is on the meta device: set ShardOptions::initialize"},
      {"a tensor of another device",
       [] {
         Trial().loss(torch::ones({2, 4}, torch::kMeta));
       },
       "tensor on meta, but the runtime computes on cpu"},
      {"checkpoint without a gradient",
       [] { acc::torch::checkpoint([](const Tensor& x) { return x; }, torch::ones(1)); },
       "none of the tensors"},
      {"no such checkpoint", [] { Trial().sharded.load_weights("/no/such"); }, "/no/such"},
  };
  return all;
}

void make_mistakes() {
  for (const Mistake& each : mistakes()) {
    std::string found = "no exception";
    try {
      each.make();
    } catch (const std::exception& error) {
      found = error.what();
    }
    expect(std::regex_search(found, std::regex(each.message)), each.name + ": " + found);
  }
  std::cout << "refused" << std::endl;
}

/// Faults of rank 1: it shards another module, uses units in another order, fails in its forward,
/// is killed in it, does not continue, or catches an exception of its backward and does not
/// continue.
const std::set<std::string> kFaults = {"differ", "order", "dies", "killed", "hangs", "catches"};

void differ(const std::string& part) {
  acc::Runtime runtime = runtime_of();
  const bool is_first = runtime.rank() == 0;
  if (part == "differ") {
    std::ignore = fully_shard(nn::Linear(4, is_first ? 4 : 5), runtime);
  }
  const auto net = std::make_shared<Pair>();
  const Sharded sharded = fully_shard(net, runtime, kLinears);
  acc::Optimizer optimizer = sharded.model().optimizer(acc::Sgd{});
  if (part == "order") {
    const Tensor x = call(is_first ? net->first : net->second, torch::ones({2, 4}));
    call(is_first ? net->second : net->first, x).sum().backward();
  } else if (part == "catches" && !is_first) {
    Tensor x = call(net->first, torch::ones({2, 4}));
    x.register_hook([](const at::TensorBase&) -> void { throw std::runtime_error("hook"); });
    try {
      call(net->second, x).sum().backward();
    } catch (const std::runtime_error&) {
      std::raise(SIGSTOP);
    }
  } else if (part != "dies" && !is_first) {
    call(net->first, torch::ones({2, 4}));
    std::raise(part == "killed" ? SIGKILL : SIGSTOP);
  } else {
    if (part == "dies" && is_first) {  // the launcher ends it as soon as the other one has ended
      std::signal(SIGTERM, SIG_IGN);
    }
    call(net, torch::ones({2, is_first ? 4 : 2})).sum().backward();
  }
  optimizer.step();
}

/// Buffers of several dtypes: two names of one tensor, no elements, strides, an expanded tensor,
/// and one that differs between ranks.
struct KeptImpl : nn::Module {
  explicit KeptImpl(int rank) : rank_of(register_buffer("rank", torch::full({3}, rank))) {
    register_parameter("weight", torch::ones(4));
    const Tensor large = torch::full({}, (std::int64_t{1} << 62) + 1, torch::kLong);
    register_buffer("seen", large);
    register_module("inner", nn::Linear(1, 1))->register_buffer("seen", large);
    register_buffer("mask", torch::arange(6).remainder(2).to(torch::kBool).view({2, 3}).t());
    register_buffer("pi", torch::full({2}, 3.141592653589793, torch::kDouble));
    register_buffer("none", torch::empty({0, 3}, torch::kShort));
    register_buffer("row", torch::arange(3).expand({2, 3}));
  }
  Tensor rank_of;
};
TORCH_MODULE(Kept);

void keep_buffers() {
  acc::Runtime runtime = runtime_of();
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("torch_modules." + std::to_string(::getppid())))
          .string();
  Kept net(runtime.rank());
  const auto expected = Kept(0)->named_buffers();
  const auto compare = [&](const auto& found, const std::string& where) {
    for (const auto& item : expected) {
      const Tensor& value = found.at(item.key());
      expect(value.scalar_type() == item.value().scalar_type() && value.equal(item.value()),
             item.key() + " " + where);
    }
  };
  const auto of = [](const Kept& each) {
    std::map<std::string, Tensor> all;
    for (const auto& item : each->named_buffers()) {
      all[item.key()] = item.value();
    }
    return all;
  };
  const Sharded sharded = fully_shard(net, runtime);
  acc::Optimizer optimizer = sharded.model().optimizer(acc::Sgd{});
  compare(of(net), "after fully_shard");
  compare(sharded.state_dict(false), "in the state dict");
  sharded.save(folder, optimizer);
  Kept other(7);
  for (const auto& item : other->named_buffers()) {
    if (item.key() != "row") {  // which is expanded
      item.value().zero_();
    }
  }
  const Sharded loaded = fully_shard(other, runtime);
  acc::Optimizer second = loaded.model().optimizer(acc::Sgd{});
  loaded.load(folder, second);
  compare(of(other), "after load");
  expect(other->named_buffers()["mask"].stride(0) == 1, "strides");
  runtime.barrier();
  if (runtime.rank() == 0) {
    std::filesystem::remove_all(folder);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string part = arguments.empty() ? "" : arguments[0];
  if (part == "mistakes") {
    make_mistakes();
  } else if (arguments.size() == 1 && kFaults.contains(part)) {
    differ(part);
  } else {
    train_all(arguments);
    if (arguments.empty()) {
      keep_buffers();
    }
  }
} catch (const std::exception& error) {
  std::cerr << "torch_modules: " << error.what() << '\n';
  return 1;
}
