#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/state/kv_store.h"
#include "engine/state/recurrent_store.h"

namespace ete {

// What sessions computed, kept for sessions that begin with the same ids: pages of keys and values and, of a
// model with recurrent state, the states after some of the positions. Nothing is copied: pages and states are
// shared with the sessions, which copy what they write.
//
// A tree for each salt. A block is up to 512 ids, aligned to pages; only a full one has children, and no
// block begins with all of a sibling's ids. What was used longest ago goes first, always a block without
// children.
//
// Engine thread; the stores must outlive it.
class PrefixCache {
 public:
  // limit_bytes: of all pages, states and rows that it holds, what it shares with live sessions included.
  PrefixCache(KvStore& kv, RecurrentStore& states, uint64_t limit_bytes);

  // [vocab_size]: logits after some position; null where they are not known.
  using Row = std::shared_ptr<const std::vector<float>>;

  struct Prefix {
    int64_t length = 0;  // positions; 0: nothing was found
    SessionKv kv;
    RecurrentState state;
    Row row;  // after the last of them
  };
  // The longest prefix of ids, of at most `most` positions, that was kept under this salt. Keys and values
  // can be used up to any position, recurrent state only after those where it was kept.
  Prefix find(const std::string& salt, std::span<const int32_t> ids, int64_t most);

  // Pages and a state that are known already may be another's, who computed the same ids in another way, to
  // other bits than those that gave the row.
  enum class RowBeside { anything, own };

  // Keeps positions [0, ids.size()) of a session that computed them, its state when that is after exactly
  // these, and the row after them: pages that are known already stay, a block that the ids go on from grows.
  // Keeps fewer, or nothing, when the limit has no room even with everything else gone.
  void insert(const std::string& salt, std::span<const int32_t> ids, const SessionKv& kv,
              const RecurrentState& state, const Row& row = nullptr, RowBeside beside = RowBeside::anything);

  // Gives up the block that was used longest ago; false when there is none.
  bool evict_one();

  uint64_t bytes() const { return bytes_; }
  uint64_t limit_bytes() const { return limit_bytes_; }
  int64_t blocks() const { return static_cast<int64_t>(by_use_.size()); }
  // Of pages, and of recurrent states, that no session holds.
  struct Idle {
    uint64_t kv_bytes = 0;
    uint64_t state_bytes = 0;
  };
  Idle idle() const;

 private:
  struct Block {
    Block* parent = nullptr;  // null: a salt's root, which holds no ids
    std::vector<int32_t> ids;
    std::vector<KvPage> page;                  // one; a root's is none
    std::map<int64_t, RecurrentState> states;  // by how many of `ids` they come after
    std::map<int64_t, Row> rows;               // likewise
    std::vector<std::unique_ptr<Block>> children;
    uint64_t last_use = 0;
    std::string salt;  // of a root
  };
  struct Place {
    Block* block = nullptr;
    int64_t positions = 0;  // of its ids
  };

  // What must stay while it is gone through: its root, and all blocks that were used since.
  struct Insertion {
    uint64_t since = 0;
    Block* root = nullptr;
  };

  Place best_child(const Block& parent, std::span<const int32_t> ids, int64_t most) const;
  int64_t usable(const Block& block, int64_t common) const;
  Block* root_of(const std::string& salt);
  Block* child_for(Block& parent, std::span<const int32_t> ids, const KvPage& page,
                   const Insertion& insertion);
  bool keep_state(Block& block, int64_t positions, const RecurrentState& state, const Insertion& insertion);
  void keep_row(Block& block, int64_t positions, const Row& row, const Insertion& insertion);
  void drop_rows(Block& block);
  bool make_room(uint64_t more, const Insertion& insertion);
  void evict_oldest(const Block* kept_root);
  void touch(Block& block);
  void touch_path(Block* leaf);
  void drop_if_empty(const Block* root);
  uint64_t page_bytes() const { return kv_.bytes_for(1); }

  KvStore& kv_;
  RecurrentStore& states_;
  uint64_t limit_bytes_;
  uint64_t bytes_ = 0;
  uint64_t clock_ = 0;
  std::map<std::string, std::unique_ptr<Block>> roots_;
  std::map<uint64_t, Block*> by_use_;  // all but roots; a parent's last use is after its children's
};

}  // namespace ete
