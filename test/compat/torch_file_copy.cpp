// SPDX-License-Identifier: Apache-2.0
// Helper program of torch_file_test.py.
//   torch_file_copy IN OUT       reads a dict of tensors that torch.save wrote, checks the bytes,
//                                and writes it again
//   torch_file_copy --write OUT  writes tensors of every dtype

#include "acc/base/error.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace acc::checkpoint;
using acc::OutputFile;

struct Named {
  std::string name;
  torch::TensorSpec spec;
  std::vector<std::byte> bytes;
};

/// Collects the tensors in nested dicts; names are paths.
void collect(const torch::TorchFile& file, const pickle::Value& value, const std::string& path,
             std::vector<Named>& found) {
  if (torch::TorchFile::is_tensor(value)) {
    const torch::TensorRef tensor = file.tensor(value);
    Named named{path, {tensor.dtype, tensor.shape}, {}};
    named.bytes.resize(tensor.bytes.nbytes);
    file.file().read(tensor.bytes.offset, named.bytes);
    if (!tensor.strides.empty()) {
      const std::vector<std::byte> stored = std::move(named.bytes);
      const std::size_t size = size_of(tensor.dtype);
      const std::int64_t numel = numel_of(tensor.shape);
      named.bytes = std::vector<std::byte>(static_cast<std::size_t>(numel) * size);
      gather_strided(stored.data(), tensor.shape, tensor.strides, size, 0, numel,
                     named.bytes.data());
    }
    found.push_back(std::move(named));
    return;
  }
  const auto pairs = value.pairs();
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (!pairs[i]->is(pickle::Value::Kind::text)) {
      continue;
    }
    const std::string key(pairs[i]->text);
    collect(file, *pairs[i + 1], path.empty() ? key : path + "." + key, found);
  }
}

void check(const torch::TorchFile& file) {
  for (const archive::Record& record : file.records()) {
    std::vector<std::byte> bytes(record.nbytes);
    file.file().read(file.offset() + record.offset, bytes);
    if (record.crc32 != 0 && crc32(0, bytes) != record.crc32) {
      throw acc::Error(acc::Errc::config, "checksum of " + record.name);
    }
  }
}

void write(const char* path, const std::vector<Named>& tensors) {
  pickle::Writer writer;
  writer.begin_ordered_dict();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    writer.text(tensors[i].name);
    torch::push_tensor(writer, tensors[i].spec, static_cast<int>(i));
  }
  writer.end_ordered_dict();
  OutputFile out(path);
  torch::TorchFileWriter archive(out, writer.finish());
  for (const Named& tensor : tensors) {
    archive.storage(tensor.bytes.size(), [&](const torch::Sink& sink) { sink(tensor.bytes); });
  }
  archive.finish();
  out.close();
}

std::vector<Named> of_every_dtype() {
  std::vector<Named> tensors;
  for (int i = 0; i <= static_cast<int>(Dtype::c128); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    for (const Shape& shape : {Shape{2, 3}, Shape{}, Shape{0, 4}, Shape{70001, 5}}) {
      Named named{std::string(torch_name(dtype)) + " " + to_string(shape), {dtype, shape}, {}};
      named.bytes.resize(static_cast<std::size_t>(numel_of(shape)) * size_of(dtype));
      for (std::size_t k = 0; k < named.bytes.size(); ++k) {
        named.bytes[k] = static_cast<std::byte>(dtype == Dtype::boolean ? k % 3 == 0 : k % 113);
      }
      tensors.push_back(std::move(named));
    }
  }
  return tensors;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: torch_file_copy IN OUT, torch_file_copy --write OUT\n");
    return 2;
  }
  try {
    if (std::string(argv[1]) == "--write") {
      write(argv[2], of_every_dtype());
      return 0;
    }
    const torch::TorchFile in{std::filesystem::path(argv[1])};
    check(in);
    std::vector<Named> tensors;
    collect(in, in.root(), "", tensors);
    write(argv[2], tensors);
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "torch_file_copy: %s\n", error.what());
    return acc::exit_status(error);
  }
}
