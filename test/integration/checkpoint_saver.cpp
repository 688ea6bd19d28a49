// SPDX-License-Identifier: Apache-2.0
// Saves and checks checkpoints.
//   checkpoint_saver series FOLDER VALUE [TOTAL_LIMIT]   saves the next checkpoint of a series
//   checkpoint_saver replace FOLDER VALUE                saves a checkpoint to FOLDER itself
//   checkpoint_saver show series|replace FOLDER          prints value and name of the newest one
#include "acc/base/error.hpp"
#include "acc/base/output_file.hpp"
#include "acc/checkpoint/files/atomic_folder.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "acc/checkpoint/files/manifest.hpp"
#include "acc/checkpoint/open/series_folder.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using namespace acc::checkpoint;
using acc::OutputFile;

const char* const kLarge = "pytorch_model_fsdp_0/weights";
const char* const kSmall = "scheduler.bin";

bool is_ours(const std::string& path) {
  return path == kLarge || path == kSmall || path == kManifestFile;
}

std::string content_of(const std::string& path, const std::string& value) {
  std::string text;
  while (text.size() < (path == kLarge ? 100'000 : 10)) {
    text += path + value + " ";
  }
  return text;
}

Manifest::File write_file(const fs::path& folder, const std::string& path,
                          const std::string& text) {
  OutputFile file(folder / path);
  file.reserve(text.size());
  file.write(std::string_view(text).substr(0, 5));
  file.write(std::string_view(text).substr(5));
  file.close();
  return {path, text.size(), crc32(0, std::as_bytes(std::span(text)))};
}

void save(AtomicFolder& folder, const std::string& value) {
  Manifest manifest;
  manifest.strategy = value;
  folder.begin();
  folder.make({fs::path(kLarge).parent_path().string()});
  for (const char* path : {kLarge, kSmall}) {
    manifest.files.push_back(write_file(folder.temporary(), path, content_of(path, value)));
  }
  write_file(folder.temporary(), kManifestFile, format_manifest(manifest));
  folder.commit();
}

void save(const std::string& mode, const fs::path& path, const std::string& value,
          std::optional<int> total_limit) {
  const SeriesFolder series(path);
  const bool is_new = mode == "series";
  AtomicFolder folder(is_new ? series.next() : path, is_ours,
                      static_cast<std::uint32_t>(::getpid()),
                      is_new ? Existing::refuse : Existing::replace);
  try {
    save(folder, value);
    if (mode == "series") {
      for (const std::string& failure : series.committed(folder.target(), total_limit)) {
        std::fprintf(stderr, "%s\n", failure.c_str());
      }
    }
  } catch (const acc::Error&) {
    folder.abandon();
    throw;
  }
}

void show(const std::string& mode, const fs::path& path) {
  const auto newest =
      mode == "series" ? SeriesFolder(path).newest() : AtomicFolder(path, is_ours).current();
  const auto manifest = newest ? read_manifest(*newest) : std::nullopt;
  if (!manifest) {
    std::printf("none\n");
    return;
  }
  check_sizes(*manifest, *newest);
  for (const Manifest::File& listed : manifest->files) {
    check_file(*manifest, *newest, listed.path);
    const InputFile file(*newest / listed.path);
    std::string text(file.nbytes(), '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    if (text != content_of(listed.path, manifest->strategy)) {
      throw acc::Error(acc::Errc::internal, file.path().string() + " holds something else");
    }
  }
  std::printf("%s %s\n", manifest->strategy.c_str(), newest->filename().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 3) {
    return 1;
  }
  try {
    if (words[0] == "show") {
      show(words[1], words[2]);
    } else {
      save(words[0], words[1], words[2],
           words.size() > 3 ? std::optional(std::atoi(words[3].c_str())) : std::nullopt);
    }
    return 0;
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return acc::exit_status(error);
  }
}
