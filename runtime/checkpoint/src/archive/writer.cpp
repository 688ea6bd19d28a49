// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/archive/archive.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "archive/zip_format.hpp"

#include <utility>

// Streams records in order. The size of a record must be known before its payload, because it
// decides whether the header needs a zip64 field. The CRC is computed on the way and written after
// the payload, in the data descriptor, and again in the central directory.
namespace acc::checkpoint::archive {

Writer::Writer(OutputFile& out, std::string root)
    : out_(out), root_(std::move(root) + "/"), start_(out.position()) {}

void Writer::begin(std::string_view name, std::uint64_t nbytes) {
  const std::uint64_t header = out_.position() - start_;
  const std::string full = root_ + std::string(name);
  out_.write(zip::local_header({.name = full, .header = header, .nbytes = nbytes}));
  headers_.push_back(header);
  records_.push_back({std::string(name), out_.position() - start_, nbytes, 0});
  left_ = nbytes;
}

// The checksum follows the write, whose copy has brought the bytes into the cache. The reverse
// order would wait for memory alone: it takes a tenth more CPU time (bench/README.md).
std::uint32_t Writer::append(std::span<const std::byte> payload) {
  if (payload.size() > left_) {
    throw Error(Errc::internal, out_.path().string() + ": more bytes than the " +
                                    std::to_string(records_.back().nbytes) + " of record " +
                                    records_.back().name);
  }
  left_ -= payload.size();
  out_.write(payload);
  const std::uint32_t crc = crc32(0, payload);
  records_.back().crc32 = crc32_combine(records_.back().crc32, crc, payload.size());
  return crc;
}

void Writer::end() {
  const Record& record = records_.back();
  if (left_ != 0) {
    throw Error(Errc::internal, out_.path().string() + ": record " + record.name + " lacks " +
                                    std::to_string(left_) + " of " + std::to_string(record.nbytes) +
                                    " bytes");
  }
  out_.write(
      zip::descriptor({.header = headers_.back(), .nbytes = record.nbytes, .crc32 = record.crc32}));
}

void Writer::add(std::string_view name, std::span<const std::byte> payload) {
  begin(name, payload.size());
  append(payload);
  end();
}

void Writer::add(std::string_view name, std::string_view payload) {
  add(name, std::as_bytes(std::span(payload)));
}

void Writer::finish() {
  const std::uint64_t begin = out_.position() - start_;
  std::string central;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const std::string name = root_ + records_[i].name;
    zip::append_central_header(central, {.name = name,
                                         .header = headers_[i],
                                         .nbytes = records_[i].nbytes,
                                         .crc32 = records_[i].crc32});
  }
  out_.write(central);
  out_.write(zip::trailer(records_.size(), begin, central.size()));
}

// Computes the same positions as Writer without writing, so that a rank knows where other ranks'
// archives lie. Writer and this function share zip_format.cpp.
Layout lay_out(std::span<const RecordSize> records, std::string_view root) {
  Layout layout;
  std::uint64_t at = 0, central = 0;
  std::string name;
  for (const RecordSize& record : records) {
    name.assign(root).append("/").append(record.name);
    const zip::Entry entry{.name = name, .header = at, .nbytes = record.nbytes};
    at += zip::local_header_nbytes(entry);
    layout.offsets.push_back(at);
    at += record.nbytes + zip::descriptor_nbytes(entry);
    central += zip::central_header_nbytes(entry);
  }
  layout.nbytes = at + central + zip::kTrailerNbytes;
  return layout;
}

}  // namespace acc::checkpoint::archive
