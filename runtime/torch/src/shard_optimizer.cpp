// SPDX-License-Identifier: Apache-2.0
// Optimizers of torch over this rank's shards.
#include "units.hpp"

#include <acc/base/error.hpp>
#include <c10/util/Type.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <limits>
#include <sstream>
#include <typeinfo>

namespace acc::torch::detail {

ShardOptimizer::ShardOptimizer(std::span<const ParameterShard> shards, at::Device device,
                               const MakeOptimizer& make) {
  Shards named;
  for (const ParameterShard& each : shards) {
    Tensor tensor = view(each.weights, {each.numel}, scalar_type(each.dtype),
                         each.in_host_memory ? at::Device(at::kCPU) : device);
    tensors_.push_back(tensor.set_requires_grad(true));
    named.insert(each.name, tensors_.back());
    layout_ +=
        each.name + " " + std::to_string(each.offset) + " " + std::to_string(each.numel) + "\n";
  }
  torch_ = make(named);
  if (torch_ == nullptr) {
    throw Error(Errc::invalid_argument,
                "the function that makes an optimizer of torch returned null");
  }
}

void ShardOptimizer::update(std::span<const ParameterShard> shards) {
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    if (shards[i].gradient != nullptr) {  // null: it required none in any backward of the step
      tensor.mutable_grad() = view(shards[i].gradient, tensor.sizes(), at::kFloat, tensor.device())
                                  .to(tensor.scalar_type());
    }
  }
  torch_->step();
  for (const Tensor& each : tensors_) {
    each.mutable_grad() = Tensor();  // its memory is reused
  }
}

std::string ShardOptimizer::settings() const {
  const ::torch::optim::Optimizer& rule = *torch_;
  std::ostringstream lines;
  lines.precision(std::numeric_limits<double>::max_digits10);
  lines << "the optimizer of torch=" << c10::demangle(typeid(rule).name()) << "\n";
  for (std::size_t i = 0; i < torch_->param_groups().size(); ++i) {
    lines << "the learning rate of parameter group " << i << "="
          << torch_->param_groups()[i].options().get_lr() << "\n";
  }
  return lines.str();
}

std::string ShardOptimizer::state() const {
  ::torch::serialize::OutputArchive archive;
  torch_->save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return layout_ + '\0' + out.str();
}

void ShardOptimizer::load(const std::string& state) {
  const std::size_t end = state.find('\0');
  if (state.substr(0, end) != layout_) {
    throw Error(Errc::config,
                "the state of the optimizer of torch was saved for other shards of the parameters: "
                "resume with the same number of ranks and the same strategy, or load the weights "
                "alone with load_weights");
  }
  std::istringstream in(state.substr(end + 1));
  ::torch::serialize::InputArchive archive;
  archive.load_from(in);
  torch_->load(archive);
}

}  // namespace acc::torch::detail
