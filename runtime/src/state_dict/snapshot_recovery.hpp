// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "state_dict/attempt.hpp"
#include "state_dict/model_files.hpp"
#include "state_dict/snapshot_choice.hpp"
#include "state_dict/snapshot_file.hpp"
#include "state_dict/snapshot_memory.hpp"
#include "state_dict/snapshot_meta.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace acc::state_dict {

/// The snapshots in the memory of all machines, and the restoration of a state from them, whatever
/// numbers of ranks and machines made them and use them now. A rank reads what it needs from the
/// memory of its machine; what another machine has is sent to all ranks, of which each keeps what
/// it needs. Collective.
class SnapshotRecovery {
 public:
  /// Looks at what there is; reads all bytes of each snapshot. memory: outlives this object; null:
  /// this rank has none.
  SnapshotRecovery(const SnapshotMemory* memory, std::span<const Part> parts,
                   const std::string& run);

  [[nodiscard]] const SnapshotSearch& search() const noexcept { return search_; }
  /// Restores the state that was chosen, and forgets all other snapshots. An error of one rank
  /// becomes an error of all.
  SavedState restore();

 private:
  /// A snapshot that this rank reads.
  struct Source {
    const SnapshotFile* file = nullptr;
    int place = 0;
    SnapshotMeta meta = {};
    std::uint64_t meta_nbytes = 0;
    /// Bytes of the values that this rank reads; of a snapshot of another machine.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> wanted = {};
    std::unique_ptr<SnapshotFile> arrived = {};  ///< what has come from another machine
  };
  /// Bytes of a source that belong to an array of this rank.
  struct Read {
    std::size_t source;
    std::uint64_t at;      ///< among the values
    std::size_t in_array;  ///< in bytes
    std::size_t nbytes;
  };
  /// Stored pieces of a parameter, in the order of sources.
  struct Stored {
    std::size_t source;
    SnapshotMeta::Piece piece;
  };
  using Place = std::pair<std::string, std::string>;  ///< kind, name of a parameter
  using StoredByPlace = std::map<Place, std::vector<Stored>>;

  void gather(const std::vector<HeldSnapshot>& own);
  [[nodiscard]] std::vector<HeldSnapshot> look(const std::string& run) const;
  [[nodiscard]] bool is_here(const HeldSnapshot& each) const;
  void open_sources();
  void exchange_meta();
  void exchange_values(Attempt& attempt);
  void broadcast(std::span<std::byte> bytes, int root) const;
  [[nodiscard]] StoredByPlace stored_of(std::size_t model) const;
  void add_reads(const StoredByPlace& stored, const sharding::ParameterRecord& record,
                 const FlatArray& array, std::pair<std::int64_t, std::int64_t> wanted,
                 std::int64_t in_shard, std::vector<Read>& to) const;
  void plan();
  void fill(std::size_t model);
  [[nodiscard]] SavedState state() const;
  void forget_others() const;

  const SnapshotMemory* memory_;
  std::vector<Part> parts_;
  const sharding::Context& context_;
  std::vector<HeldSnapshot> held_;
  std::vector<int> machines_;
  SnapshotSearch search_;
  std::map<std::size_t, Source> sources_;              ///< by number in `held_`
  std::vector<std::vector<std::vector<Read>>> reads_;  ///< by model, array
};

}  // namespace acc::state_dict
