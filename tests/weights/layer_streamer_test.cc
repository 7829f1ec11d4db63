#include "engine/weights/layer_streamer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/runtime/detached_device.h"
#include "tests/weights/made_up_model.h"

namespace ete {
namespace {

class StreamerTest : public MadeUpModel {
 protected:
  // Every value of the layer, read where the lease says.
  void expect_layer(const LayerLease& lease, int64_t layer) const {
    const std::string name = std::string("layer").append(std::to_string(layer));
    const SplitMatrix w = lease.matrix(0);
    ASSERT_EQ(w.device.rows + w.host.rows, kRows);
    std::vector<float> row(kCols);
    for (int64_t r = 0; r < kRows; ++r) {
      const bool on_device = r < w.device.rows;
      unpack_row(on_device ? w.device : w.host, on_device ? r : r - w.device.rows, row.data());
      for (int64_t c = 0; c < kCols; ++c) {
        ASSERT_EQ(row[static_cast<size_t>(c)], source_.value(name + ".w", r * kCols + c))
            << layer << " " << r;
      }
      ASSERT_EQ(lease.vector(1)[r], source_.value(name + ".b", r));
    }
    ASSERT_EQ(lease.matrix(2).device.rows, 0);
    ASSERT_EQ(lease.vector(2), nullptr);
  }

  // Passes over the layers, each checked on the compute stream when its copy has arrived.
  void expect_passes(const WeightStore& store, const StreamerOptions& options, int passes) {
    const bool at_home = store.home() == WeightHome::memory;
    DeviceArena arena(*device_, LayerStreamer::arena_bytes(lay_out(weights_, std::vector<double>(kLayers, 0)),
                                                           options, at_home));
    LayerStreamer streamer(*device_, store, arena, *copy_, options);
    for (int pass = 0; pass < passes; ++pass) {
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        const LayerLease lease = streamer.acquire(layer, *compute_);
        device_->host_async(*compute_, [this, &lease, layer] { expect_layer(lease, layer); });
        compute_->synchronize();
      }
    }
  }
};

TEST_F(StreamerTest, ResidentLayersAreReadAtHome) {
  const auto store = make_store();
  DeviceArena arena(*device_, 0);
  LayerStreamer streamer(*device_, *store, arena, *copy_, {.resident = std::vector<bool>(kLayers, true)});
  const LayerLease lease = streamer.acquire(3, *compute_);
  EXPECT_EQ(lease.matrix(0).device.data, store->layer_home(3));
  EXPECT_EQ(streamer.bytes_copied(), 0u);
}

// Pages of the file are for the system to keep or to drop: what is fetched again must not be released.
TEST_F(StreamerTest, LayersInTheFileArriveInTurn) {
  const auto store = make_store(0, WeightHome::file);
  const int released = source_.releases();
  StreamerOptions options{.resident = std::vector<bool>(kLayers, false), .slots = 2};
  options.resident[1] = true;
  options.poison_released_slots = true;
  expect_passes(*store, options, 3);
  EXPECT_EQ(source_.releases(), released);
}

TEST_F(StreamerTest, StreamedLayersArriveInTurn) {
  for (const double share : {0.0, 0.5, 1.0}) {
    const auto store = make_store(share);
    for (const int slots : {2, 3, 4, 7}) {
      SCOPED_TRACE(testing::Message() << slots << " slots, host share " << share);
      expect_passes(
          *store,
          {.resident = std::vector<bool>(kLayers, false), .slots = slots, .poison_released_slots = true}, 3);
      expect_passes(*store,
                    {.resident = {false, true, false, false, true}, .slots = slots, .copy_piece = 100}, 3);
    }
  }
}

TEST_F(StreamerTest, EachPassCopiesEachStreamedLayerOnce) {
  const auto store = make_store();
  const StreamerOptions options{.resident = {false, false, true, false, false}, .slots = 2};
  DeviceArena arena(*device_, LayerStreamer::arena_bytes(lay_out(weights_, std::vector<double>(kLayers, 0)),
                                                         options, true));
  LayerStreamer streamer(*device_, *store, arena, *copy_, options);
  const uint64_t layer = store->layer_layout(0).device_bytes;
  EXPECT_EQ(streamer.bytes_copied(), 2 * layer);  // both slots are filled before the first pass
  for (uint64_t pass = 1; pass <= 3; ++pass) {
    for (int64_t i = 0; i < kLayers; ++i) streamer.acquire(i, *compute_);
    compute_->synchronize();
    EXPECT_EQ(streamer.bytes_copied(), (4 * pass + 2) * layer);
  }
}

// A pass that ended early leaves layers in the slots that the next one does not need first.
TEST_F(StreamerTest, PassCutShort) {
  const auto store = make_store();
  const StreamerOptions options{.resident = std::vector<bool>(kLayers, false), .slots = 3};
  DeviceArena arena(*device_, LayerStreamer::arena_bytes(lay_out(weights_, std::vector<double>(kLayers, 0)),
                                                         options, true));
  LayerStreamer streamer(*device_, *store, arena, *copy_, options);
  for (const int64_t layer : {0, 1, 0, 1, 2, 0, 1, 2, 3, 4, 0, 3}) {
    const LayerLease lease = streamer.acquire(layer, *compute_);
    device_->host_async(*compute_, [this, &lease, layer] { expect_layer(lease, layer); });
    compute_->synchronize();
  }
  // After reset() what the slots held counts for nothing: this layer is copied again, and when it is given
  // back, those that the next pass begins with.
  const uint64_t copied = streamer.bytes_copied();
  const uint64_t layer_bytes = store->layer_layout(0).device_bytes;
  streamer.reset();
  {
    const LayerLease lease = streamer.acquire(4, *compute_);
    EXPECT_EQ(streamer.bytes_copied(), copied + layer_bytes);
    device_->host_async(*compute_, [this, &lease] { expect_layer(lease, 4); });
    compute_->synchronize();
  }
  EXPECT_EQ(streamer.bytes_copied(), copied + 4 * layer_bytes);
}

TEST_F(StreamerTest, LeasedSlotIsNotOverwritten) {
  const auto store = make_store();
  const StreamerOptions options{.resident = std::vector<bool>(kLayers, false), .slots = 2};
  DeviceArena arena(*device_, LayerStreamer::arena_bytes(lay_out(weights_, std::vector<double>(kLayers, 0)),
                                                         options, true));
  LayerStreamer streamer(*device_, *store, arena, *copy_, options);
  const LayerLease held = streamer.acquire(0, *compute_);
  const LayerLease other = streamer.acquire(2, *compute_);
  device_->host_async(*compute_, [&] {
    expect_layer(held, 0);
    expect_layer(other, 2);
  });
  compute_->synchronize();
  EXPECT_THROW(streamer.acquire(3, *compute_), Error);
}

// Beside a device with memory of its own, the host's rows are in the slot too in the passes that ask for
// them, the layers that were fetched before such a pass began included.
class WholeLayersTest : public StreamerTest {
 protected:
  WholeLayersTest() {
    device_ = std::make_unique<test::DetachedDevice>(1);
    compute_ = device_->create_stream("compute");
    copy_ = device_->create_stream("copy");
  }

  void expect_rest(const LayerLease& lease, int64_t layer, bool whole) const {
    expect_layer(lease, layer);
    const SplitMatrix w = lease.matrix(0);
    ASSERT_EQ(w.rest.rows, whole ? w.host.rows : 0);
    std::vector<float> row(kCols);
    for (int64_t r = 0; r < w.rest.rows; ++r) {
      unpack_row(w.rest, r, row.data());
      ASSERT_EQ(row[3], source_.value(std::string("layer").append(std::to_string(layer)) + ".w",
                                      (w.device.rows + r) * kCols + 3))
          << layer << " " << r;
    }
  }
};

TEST_F(WholeLayersTest, ArriveInPassesThatAskForThem) {
  for (const double share : {0.5, 1.0}) {
    const auto store = make_store(share);
    for (const int slots : {2, 4}) {
      SCOPED_TRACE(testing::Message() << slots << " slots, host share " << share);
      const StreamerOptions options{.resident = {false, true, false, false, false},
                                    .slots = slots,
                                    .whole_layers = true,
                                    .poison_released_slots = true};
      DeviceArena arena(*device_, LayerStreamer::arena_bytes(store->layout(), options, false),
                        ArenaMode::separate);
      LayerStreamer streamer(*device_, *store, arena, *copy_, options);
      for (const bool whole : {false, true, true, false, true}) {
        streamer.begin_pass(whole);
        for (int64_t layer = 0; layer < kLayers; ++layer) {
          const LayerLease lease = streamer.acquire(layer, *compute_);
          const SplitMatrix w = lease.matrix(0);
          EXPECT_TRUE(!whole || w.rest.rows == w.host.rows);
          const bool there = w.rest.rows > 0;
          device_->host_async(*compute_, [&, layer] { expect_rest(lease, layer, there); });
          compute_->synchronize();
        }
      }
      arena.check();
    }
  }
}

// Once a pass needs them no more, they are not copied.
TEST_F(WholeLayersTest, TheHostsRowsStayAtHomeOtherwise) {
  const auto store = make_store(0.5);
  const StreamerOptions options{
      .resident = std::vector<bool>(kLayers, false), .slots = 2, .whole_layers = true};
  DeviceArena arena(*device_, LayerStreamer::arena_bytes(store->layout(), options, false));
  LayerStreamer streamer(*device_, *store, arena, *copy_, options);
  const auto pass = [&](bool whole) {
    streamer.begin_pass(whole);
    for (int64_t i = 0; i < kLayers; ++i) streamer.acquire(i, *compute_);
    compute_->synchronize();
    return streamer.bytes_copied();
  };
  const BlobLayout& layer = store->layer_layout(0);
  const uint64_t begin = pass(false);
  EXPECT_EQ(pass(false) - begin, uint64_t{kLayers} * layer.device_bytes);
  const uint64_t before = streamer.bytes_copied();
  // The rest of the two layers that are there, then the others and the next pass's first two.
  EXPECT_EQ(pass(true) - before, 2 * (layer.bytes - layer.device_bytes) + uint64_t{kLayers} * layer.bytes);
}

// A device that refuses a number of copies at the call, as one does that has stopped working.
class RefusingDevice final : public Device {
 public:
  explicit RefusingDevice(Device& inner) : inner_(inner) {}
  int grants = 0;  // before the refusals
  int refusals = 0;

  DeviceInfo info() const override { return inner_.info(); }
  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    return inner_.create_stream(name);
  }
  std::unique_ptr<Event> create_event() override { return inner_.create_event(); }
  Buffer allocate(size_t bytes, MemorySpace space) override { return inner_.allocate(bytes, space); }
  bool pin(const std::byte* data, std::string* why) override { return inner_.pin(data, why); }
  void copy_async(Stream& stream, void* dst, const void* src, size_t bytes) override {
    grant_or_refuse();
    inner_.copy_async(stream, dst, src, bytes);
  }
  void fill_async(Stream& stream, void* dst, std::byte value, size_t bytes) override {
    grant_or_refuse();
    inner_.fill_async(stream, dst, value, bytes);
  }
  std::unique_ptr<LinkPacer> create_pacer(uint64_t bytes_per_second) override {
    return inner_.create_pacer(bytes_per_second);
  }
  void host_async(Stream& stream, std::function<void()> work) override {
    inner_.host_async(stream, std::move(work));
  }
  size_t allocated_bytes() const override { return inner_.allocated_bytes(); }

 private:
  void grant_or_refuse() {
    if (grants > 0) {
      --grants;
    } else if (refusals > 0) {
      --refusals;
      throw Error(ErrorCode::unavailable, "the device is gone");
    }
  }

  Device& inner_;
};

// Leases end in destructors: what the device refuses there waits for the next call that may throw.
TEST_F(StreamerTest, AReleaseThatFailsIsToldByTheNextAcquire) {
  const auto store = make_store();
  for (const bool poison : {false, true}) {  // the prefetch fails; the poisoning before it does
    RefusingDevice device(*device_);
    const StreamerOptions options{
        .resident = std::vector<bool>(kLayers, false), .slots = 2, .poison_released_slots = poison};
    DeviceArena arena(device, LayerStreamer::arena_bytes(lay_out(weights_, std::vector<double>(kLayers, 0)),
                                                         options, true));
    LayerStreamer streamer(device, *store, arena, *copy_, options);
    {
      const LayerLease lease = streamer.acquire(0, *compute_);
      device.refusals = 1;
    }
    for (int turn = 0; turn < 2; ++turn) {
      try {
        streamer.acquire(1, *compute_);
        FAIL() << "no exception";
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "the device is gone");
      }
    }
    EXPECT_THROW(streamer.prefetch(2), Error);
    streamer.reset();
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const LayerLease lease = streamer.acquire(layer, *compute_);
      device_->host_async(*compute_, [this, &lease, layer] { expect_layer(lease, layer); });
      compute_->synchronize();
    }
  }
}

// Refused at any copy of an acquire: no slot stays leased, none counts as filled.
TEST_F(StreamerTest, AnAcquireThatFailsLeavesNothingLeased) {
  const auto store = make_store();
  RefusingDevice device(*device_);
  const StreamerOptions options{.resident = std::vector<bool>(kLayers, false), .slots = 2};
  DeviceArena arena(
      device, LayerStreamer::arena_bytes(lay_out(weights_, std::vector<double>(kLayers, 0)), options, true));
  LayerStreamer streamer(device, *store, arena, *copy_, options);
  for (int turn = 0; turn < 4; ++turn) {
    device.grants = turn % 2;
    device.refusals = 1;
    EXPECT_THROW(streamer.acquire(3, *compute_), Error);
    device.refusals = 0;
    streamer.reset();
  }
  for (const int64_t layer : {3, 4, 0}) {
    const LayerLease lease = streamer.acquire(layer, *compute_);
    device_->host_async(*compute_, [this, &lease, layer] { expect_layer(lease, layer); });
    compute_->synchronize();
  }
}

// The planner counts with arena_bytes(): what the streamer takes is that, to the byte.
TEST_F(StreamerTest, TakesWhatWasPlanned) {
  const auto store = make_store();
  const StoreLayout layout = lay_out(weights_, std::vector<double>(kLayers, 0));
  for (const std::vector<bool>& resident :
       {std::vector<bool>(kLayers, false), std::vector<bool>{false, true, false, false, true},
        std::vector<bool>(kLayers, true)}) {
    for (const int slots : {2, 3, 7}) {
      const StreamerOptions options{.resident = resident, .slots = slots};
      const size_t planned = LayerStreamer::arena_bytes(layout, options, true);
      DeviceArena arena(*device_, planned);
      const LayerStreamer streamer(*device_, *store, arena, *copy_, options);
      EXPECT_EQ(arena.used(), planned);
      EXPECT_EQ(device_->allocated_bytes(), planned);
    }
  }
}

TEST_F(StreamerTest, TellsWhenCopiesAreDone) {
  const auto store = make_store();
  const StreamerOptions options{.resident = std::vector<bool>(kLayers, false), .slots = 2};
  DeviceArena arena(*device_, LayerStreamer::arena_bytes(lay_out(weights_, std::vector<double>(kLayers, 0)),
                                                         options, true));
  LayerStreamer streamer(*device_, *store, arena, *copy_, options);
  std::atomic<int> calls{0};
  EXPECT_TRUE(streamer.notify_when_copied([&] { ++calls; }));
  copy_->synchronize();
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(streamer.notify_when_copied([&] { ++calls; }));
}

}  // namespace
}  // namespace ete
