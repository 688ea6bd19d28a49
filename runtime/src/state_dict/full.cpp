#include "state_dict/full.hpp"

#include "acc/checkpoint/accelerate/state_files.hpp"
#include "state_dict/gathered.hpp"
#include "state_dict/weights_file.hpp"

namespace acc::checkpoint {

void write_full_model(detail::ModelState& model, const std::filesystem::path& path,
                      std::optional<DType> dtype, Attempt& attempt) {
  const auto arrays = weight_arrays(model);
  GatheredTensors tensors(model, arrays, weight_items(model, arrays), {});
  attempt([&] {
    // Other ranks only take part in the gathers, by `finish`.
    if (is_rank_zero(model)) {
      write_weights_file(path, tensors, 0, tensors.items().size(), dtype);
    }
  });
  tensors.finish();
}

// Moments are gathered in the order of the arrays, and written in the same order, while the pickle
// groups them by parameter.
void write_full_optimizer(const Part& part, const std::filesystem::path& path, Attempt& attempt) {
  const auto arrays = moment_arrays(*part.model, *part.optimizer);
  GatheredTensors tensors(*part.model, arrays, moment_items(arrays), {});
  attempt([&] {
    if (!is_rank_zero(*part.model)) {
      return;
    }
    std::vector<accelerate::FullMoment> moments;
    for (const FullItem& item : tensors.items()) {
      moments.push_back({item.name, item.kind, stored_dtype(item.dtype), item.shape});
    }
    accelerate::write_optimizer_file(
        path, part.optimizer->name(), part.optimizer->steps, stored_groups(*part.optimizer),
        moments, [&](std::size_t index, const torch::Sink& sink) {
          const FullItem& item = tensors.items()[index];
          sink({tensors.bring(index),
                static_cast<std::size_t>(numel_of(item.shape)) * nbytes_of(item.dtype)});
        });
  });
  tensors.finish();
}

}  // namespace acc::checkpoint
