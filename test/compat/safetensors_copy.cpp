// SPDX-License-Identifier: Apache-2.0
// Helper program of safetensors_test.py.
//   safetensors_copy IN OUT [DTYPE]              reads every tensor as fp32 and writes it in its
//                                                own dtype, or in DTYPE; F64 becomes F32
//   safetensors_copy --set IN FOLDER MAX_NBYTES  writes a file or set of any dtypes as a set

#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/safetensors/tensor_set.hpp"
#include "support/safetensors_file.hpp"

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace {

using namespace acc::checkpoint;
using acc::test::SafetensorsFile;
using acc::test::SafetensorsWriter;

void copy_file(const char* from, const char* to, std::optional<Dtype> dtype) {
  const SafetensorsFile in(from);
  std::vector<NamedTensor> specs;
  for (const TensorEntry& tensor : in.tensors()) {
    const Dtype own = tensor.dtype == Dtype::f64 ? Dtype::f32 : tensor.dtype;
    specs.push_back({tensor.name, dtype.value_or(own), tensor.shape});
  }
  SafetensorsWriter out(to, specs, in.metadata());
  for (const TensorEntry& tensor : in.tensors()) {
    std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
    in.read_slice(tensor.name, 0, values);
    out.append(values);
  }
  out.commit();
}

void copy_set(const char* from, const std::filesystem::path& to, std::uint64_t max_nbytes) {
  const Catalog in = read_safetensors(from);
  std::vector<NamedTensor> tensors;
  for (const StoredTensor& tensor : in.tensors) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  const SafetensorsPlan plan = plan_safetensors(std::move(tensors), max_nbytes);
  TensorReader reader(in);
  for (const auto& file : plan.files) {
    SafetensorsWriter out(to / file.name, file.tensors, {{"format", "pt"}});
    for (const NamedTensor& tensor : file.tensors) {
      const std::int64_t numel = numel_of(tensor.shape);
      std::vector<std::byte> bytes(static_cast<std::size_t>(numel) * size_of(tensor.dtype));
      reader.read(in.at(tensor.name, "param", from), 0, numel, tensor.dtype, bytes.data());
      out.append(bytes);
    }
    out.commit();
  }
  if (!plan.index.empty()) {
    acc::write_file(to / "model.safetensors.index.json", plan.index, acc::Overwrite::yes);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr,
                 "usage: safetensors_copy IN OUT [DTYPE]\n"
                 "       safetensors_copy --set IN FOLDER MAX_NBYTES\n");
    return 2;
  }
  try {
    if (argc == 5 && argv[1] == std::string("--set")) {
      copy_set(argv[2], argv[3], std::stoull(argv[4]));
    } else {
      copy_file(argv[1], argv[2], argc > 3 ? dtype_of_safetensors(argv[3]) : std::nullopt);
    }
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "safetensors_copy: %s\n", error.what());
    return acc::exit_status(error);
  }
}
