#include "engine/device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>

#include "engine/base/error.h"
#include "tests/device/device_status.h"

namespace ete {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// One body for every device; a GPU that is not there is skipped, saying why.
class DeviceTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() != "cpu") {
      const std::string reason = why_absent(GetParam());
      if (!reason.empty()) GTEST_SKIP() << reason;
    }
    device_ = make_device({.device = GetParam(), .threads = 2});
    a_ = device_->create_stream("a");
    b_ = device_->create_stream("b");
  }

  // Work that holds its stream until open() is called.
  class Gate {
   public:
    std::function<void()> closed() {
      return [future = future_] { future.wait(); };
    }
    void open() { promise_.set_value(); }

   private:
    std::promise<void> promise_;
    std::shared_future<void> future_ = promise_.get_future().share();
  };

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> a_;
  std::unique_ptr<Stream> b_;
};

TEST_P(DeviceTest, SaysWhatItIs) {
  const DeviceInfo info = device_->info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_FALSE(info.capability.empty());
  EXPECT_GT(info.total_bytes, size_t{1} << 28);
  EXPECT_LE(info.free_bytes, info.total_bytes);
  EXPECT_GT(info.free_bytes, 0u);
  EXPECT_EQ(info.shares_host_memory, info.kind == DeviceKind::cpu);
}

TEST_P(DeviceTest, AllocationsAreAlignedCountedAndFreed) {
  EXPECT_EQ(device_->allocated_bytes(), 0u);
  {
    const Buffer small = device_->allocate(100, MemorySpace::device);
    const Buffer large = device_->allocate(5u << 20, MemorySpace::device);
    const Buffer host = device_->allocate(3u << 20, MemorySpace::host);
    for (const Buffer* buffer : {&small, &large, &host}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    }
    std::memset(host.data(), 1, host.size());
    EXPECT_EQ(device_->allocated_bytes(), 100 + (5u << 20));
  }
  EXPECT_EQ(device_->allocated_bytes(), 0u);
}

TEST_P(DeviceTest, RefusesWhatDoesNotFitWithTheFigure) {
  const size_t too_much = size_t{1} << 46;
  try {
    device_->allocate(too_much, MemorySpace::device);
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_THAT(error.what(), HasSubstr(std::to_string(too_much)));
  }
  EXPECT_EQ(device_->allocated_bytes(), 0u);
}

TEST_P(DeviceTest, CopiesThereAndBack) {
  constexpr size_t kBytes = 3 << 20;
  const Buffer source = device_->allocate(kBytes, MemorySpace::host);
  const Buffer there = device_->allocate(kBytes, MemorySpace::device);
  const Buffer back = device_->allocate(kBytes, MemorySpace::host);
  std::iota(source.as<uint32_t>(), source.as<uint32_t>() + kBytes / 4, 7u);
  std::memset(back.data(), 0, kBytes);
  device_->copy_async(*a_, there.data(), source.data(), kBytes);
  device_->copy_async(*a_, back.data(), there.data(), kBytes);
  a_->synchronize();
  EXPECT_EQ(std::memcmp(source.data(), back.data(), kBytes), 0);
}

TEST_P(DeviceTest, PlainMemoryIsPinnedWhereItIs) {
  constexpr size_t kBytes = (size_t{3} << 20) + 5;
  const Buffer there = device_->allocate(kBytes, MemorySpace::device);
  const Buffer back = device_->allocate(kBytes, MemorySpace::host);
  for (const bool pins : {false, true}) {
    const Buffer source = device_->allocate(kBytes, MemorySpace::plain);
    for (size_t i = 0; i < kBytes; ++i) source.data()[i] = static_cast<std::byte>(i * 7 + (pins ? 1 : 0));
    std::string why;
    EXPECT_TRUE(!pins || device_->pin(source.data(), &why)) << why;
    device_->copy_async(*a_, there.data(), source.data(), kBytes);
    device_->copy_async(*a_, back.data(), there.data(), kBytes);
    a_->synchronize();
    EXPECT_EQ(std::memcmp(back.data(), source.data(), kBytes), 0);
  }
  EXPECT_EQ(device_->allocated_bytes(), kBytes);
}

TEST_P(DeviceTest, FillsInTheOrderOfTheStream) {
  constexpr size_t kBytes = 1000;
  const Buffer there = device_->allocate(kBytes, MemorySpace::device);
  const Buffer back = device_->allocate(kBytes, MemorySpace::host);
  device_->fill_async(*a_, there.data(), std::byte{7}, kBytes);
  device_->fill_async(*a_, there.data() + 10, std::byte{0xff}, 1);
  device_->copy_async(*a_, back.data(), there.data(), kBytes);
  a_->synchronize();
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(back.data()[i], std::byte(i == 10 ? 0xff : 7)) << i;
}

TEST_P(DeviceTest, WorkOfAStreamRunsInOrderAndLater) {
  Gate gate;
  std::vector<int> order;  // written by the stream only, read after it
  device_->host_async(*a_, gate.closed());
  for (int i = 0; i < 200; ++i) device_->host_async(*a_, [&order, i] { order.push_back(i); });
  gate.open();
  a_->synchronize();
  std::vector<int> expected(200);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(DeviceTest, StreamsDoNotWaitForEachOther) {
  Gate gate;
  std::atomic<bool> ran{false};
  device_->host_async(*a_, gate.closed());
  device_->host_async(*b_, [&] { ran = true; });
  if (GetParam() == "cpu") {  // CUDA may run the host work of all streams on one thread
    b_->synchronize();
    EXPECT_TRUE(ran);
  }
  gate.open();
  a_->synchronize();
  b_->synchronize();
  EXPECT_TRUE(ran);
}

// Two slots between a producer and a consumer, each direction held by an event: with either wait missing, the
// consumer reads a slot too early or the producer overwrites one too soon.
TEST_P(DeviceTest, EventsOrderBothDirections) {
  constexpr int kRounds = 40;
  constexpr size_t kInts = 1 << 14;
  constexpr size_t kBytes = kInts * sizeof(int);
  const Buffer source = device_->allocate(kRounds * kBytes, MemorySpace::host);
  const Buffer result = device_->allocate(kRounds * kBytes, MemorySpace::host);
  for (int i = 0; i < kRounds; ++i) std::fill_n(source.as<int>() + i * kInts, kInts, i + 1);
  std::vector<Buffer> slots;
  std::vector<std::unique_ptr<Event>> copied, computed;
  for (int slot = 0; slot < 2; ++slot) {
    slots.push_back(device_->allocate(kBytes, MemorySpace::device));
    copied.push_back(device_->create_event());
    computed.push_back(device_->create_event());
  }
  for (int i = 0; i < kRounds; ++i) {
    const auto slot = static_cast<size_t>(i % 2);
    computed[slot]->wait(*a_);
    if (i % 3 == 0) device_->host_async(*a_, [] { std::this_thread::sleep_for(milliseconds(1)); });
    device_->copy_async(*a_, slots[slot].data(), source.data() + i * kBytes, kBytes);
    copied[slot]->record(*a_);
    copied[slot]->wait(*b_);
    if (i % 5 == 0) device_->host_async(*b_, [] { std::this_thread::sleep_for(milliseconds(2)); });
    device_->copy_async(*b_, result.data() + i * kBytes, slots[slot].data(), kBytes);
    computed[slot]->record(*b_);
  }
  b_->synchronize();
  EXPECT_EQ(std::memcmp(source.data(), result.data(), kRounds * kBytes), 0);
  a_->synchronize();
}

TEST_P(DeviceTest, AnEventNeverRecordedIsComplete) {
  const auto event = device_->create_event();
  event->synchronize();
  event->wait(*a_);
  a_->synchronize();
}

TEST_P(DeviceTest, AnEventMarksOnlyWhatCameBeforeIt) {
  Gate gate;
  std::atomic<bool> first{false};
  const auto event = device_->create_event();
  device_->host_async(*a_, [&] {
    std::this_thread::sleep_for(milliseconds(5));
    first = true;
  });
  event->record(*a_);
  device_->host_async(*a_, gate.closed());
  event->synchronize();  // would hang if it waited for the gate
  EXPECT_TRUE(first);
  gate.open();
  a_->synchronize();
}

TEST_P(DeviceTest, AWaitKeepsThePointThatItSaw) {
  Gate gate;
  const auto event = device_->create_event();
  event->record(*a_);
  event->wait(*b_);
  device_->host_async(*a_, gate.closed());
  event->record(*a_);
  b_->synchronize();  // would hang if re-recording moved the point of the wait
  std::atomic<bool> opened{false};
  std::atomic<bool> seen_opened{false};
  event->wait(*b_);  // sees the new point
  device_->host_async(*b_, [&] { seen_opened = opened.load(); });
  std::this_thread::sleep_for(milliseconds(5));
  opened = true;
  gate.open();
  b_->synchronize();
  EXPECT_TRUE(seen_opened);
  a_->synchronize();
}

TEST_P(DeviceTest, AnErrorStopsItsStreamUntilItIsSeen) {
  std::atomic<int> ran{0};
  const auto event = device_->create_event();
  device_->host_async(*a_, [] { throw Error(ErrorCode::corrupt, "page 7"); });
  device_->host_async(*a_, [&] { ++ran; });
  event->record(*a_);
  event->wait(*b_);
  device_->host_async(*b_, [&] { ran += 10; });
  b_->synchronize();  // the other stream neither fails nor waits for ever
  EXPECT_EQ(ran, 10);
  try {
    a_->synchronize();
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_STREQ(error.what(), "page 7");
  }
  device_->host_async(*a_, [&] { ran += 100; });
  a_->synchronize();
  EXPECT_EQ(ran, 110);
}

// On a GPU that is the driver's business.
class CpuDeviceTest : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Cpu, CpuDeviceTest, testing::Values("cpu"));

// Whoever waits for a stream sleeps until its turn has come: one wake-up, not one an item.
TEST_P(CpuDeviceTest, WaitingCostsNoWakeUpPerItem) {
  Gate gate;
  device_->host_async(*a_, gate.closed());
  for (int i = 0; i < 300; ++i) {
    device_->host_async(*a_, [] { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
  }
  const auto sleeps = [] {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  const long before = sleeps();
  gate.open();
  a_->synchronize();
  EXPECT_LT(sleeps() - before, 20);
}

TEST_P(DeviceTest, EveryWaitingCallerIsWoken) {
  Gate first, second;
  std::atomic<int> called{0};
  const auto wait_for_stream = [&] {
    ++called;
    a_->synchronize();
  };
  // Most likely waits by then.
  const auto wait_until_called = [&](int callers) {
    while (called < callers) std::this_thread::yield();
    std::this_thread::sleep_for(milliseconds(100));
  };
  device_->host_async(*a_, first.closed());
  auto early = std::async(std::launch::async, wait_for_stream);
  wait_until_called(1);
  device_->host_async(*a_, second.closed());
  auto late = std::async(std::launch::async, wait_for_stream);
  wait_until_called(2);
  first.open();
  // Would wait for the second if only the last target woke anybody.
  EXPECT_EQ(early.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  second.open();
  early.wait();
  late.wait();
}

TEST_P(DeviceTest, AnotherDevicesStreamIsRefused) {
  class Stranger : public Stream {
    void synchronize() override {}
  } stranger;
  const auto event = device_->create_event();
  EXPECT_THROW(event->record(stranger), Error);
  EXPECT_THROW(event->wait(stranger), Error);
  EXPECT_THROW(device_->host_async(stranger, [] {}), Error);
}

TEST_P(DeviceTest, DestructionRunsWhatWasSubmitted) {
  std::atomic<int> ran{0};
  for (int i = 0; i < 50; ++i) device_->host_async(*a_, [&] { ++ran; });
  a_.reset();
  EXPECT_EQ(ran, 50);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTest, testing::Values("cpu", "cuda:0"),
                         [](const auto& info) { return info.param == "cpu" ? "cpu" : "cuda"; });

class MakeDeviceTest : public testing::TestWithParam<std::string> {};

TEST_P(MakeDeviceTest, UnknownNamesAreRefused) {
  try {
    make_device({.device = GetParam()});
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("'" + GetParam() + "'"));
    EXPECT_THAT(error.what(), HasSubstr("cuda:N"));
  }
}
INSTANTIATE_TEST_SUITE_P(Names, MakeDeviceTest,
                         testing::Values("", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x",
                                         "cuda:99999999999", "CPU", "cpu:0"));

TEST(MakeDevice, ABrokenOrAbsentGpuIsUnavailable) {
  try {
    make_device({.device = "cuda:900"});
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), HasSubstr("cuda:900"));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr(".cc:")));
  }
}

TEST(MakeDevice, RefusesAThreadCountOutOfRange) {
  for (const int threads : {-1, 1025}) {
    try {
      make_device({.device = "cpu", .threads = threads});
      FAIL() << "no exception";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr(std::to_string(threads)));
    }
  }
}

TEST(MakeDevice, TheListHasTheCpuAndAWordAboutCuda) {
  const auto devices = list_devices();
  ASSERT_GE(devices.size(), 2u);
  EXPECT_EQ(devices[0], std::make_pair(std::string("cpu"), std::string("ok")));
  EXPECT_THAT(devices[1].first, HasSubstr("cuda"));
  EXPECT_FALSE(devices[1].second.empty());
}

}  // namespace
}  // namespace ete
