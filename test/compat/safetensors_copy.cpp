// safetensors_copy IN OUT [DTYPE]: reads every tensor as fp32 and writes it in its own dtype, or in
// DTYPE; F64 becomes F32. The other half of safetensors_test.py.

#include "checkpoint/safetensors/file.hpp"

#include <cstdio>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  using namespace acc::checkpoint;
  if (argc < 3) {
    std::fprintf(stderr, "usage: safetensors_copy IN OUT [DTYPE]\n");
    return 2;
  }
  try {
    const SafetensorsFile in(argv[1]);
    std::vector<NamedTensor> specs;
    for (const TensorEntry& tensor : in.tensors()) {
      const Dtype own = tensor.dtype == Dtype::f64 ? Dtype::f32 : tensor.dtype;
      specs.push_back(
          {tensor.name, argc > 3 ? dtype_of_safetensors(argv[3]).value() : own, tensor.shape});
    }
    SafetensorsWriter out(argv[2], specs, in.metadata());
    for (const TensorEntry& tensor : in.tensors()) {
      std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
      in.read_slice(tensor.name, 0, values);
      out.append(values);
    }
    out.commit();
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "safetensors_copy: %s\n", error.what());
    return acc::exit_status(error);
  }
}
